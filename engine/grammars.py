"""Grammars by way of llguidance: compiled once, forked for each sequence.

Masks of a pass are made together, over some threads of the library's own and without the
interpreter's lock, so they cost the loop only what the pass itself does not hide. Torch-free.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer

from engine.errors import GrammarInvalid
from engine.grammar import compiling_threads, limits
from engine.matcher import Matcher, Turn
from engine.step import Masks

KEPT = 64  # grammars: one that is hard to follow grows to tens of megabytes


class GrammarMatcher:
    """A Matcher."""

    __slots__ = ("inner",)

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner

    @property
    def complete(self) -> bool:
        return self.inner.is_stopped() and not self.inner.is_error()

    @property
    def fault(self) -> str:
        return self.inner.get_error() if self.inner.is_error() else ""

    def take(self, token: int) -> None:
        self.inner.consume_token(token)

    def fitting(self, tokens: Sequence[int]) -> int:
        return self.inner.validate_tokens(list(tokens))

    def fork(self) -> "GrammarMatcher":
        return GrammarMatcher(self.inner.deep_copy())


class LlGrammars:
    """Grammars over one tokenizer. ``compile`` and ``masks`` are called by one thread."""

    def __init__(
        self, tokenizer: Path, *, vocab_size: int, eos: Sequence[int], threads: int
    ) -> None:
        """``tokenizer``: a tokenizer.json; it is read in the background."""
        self._executor = LLExecutor(threads)
        self._masking = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._compiling = compiling_threads(2)
        self._kept: OrderedDict[str, Future[Matcher]] = OrderedDict()

        def read() -> LLTokenizer:
            text, ends = tokenizer.read_text("utf-8"), list(eos) or None
            found = LLTokenizer(text, eos_token=ends)
            if found.vocab_size > vocab_size:  # a grammar must not wait for what is never drawn
                found = LLTokenizer(within(text, vocab_size), eos_token=ends)
            if found.vocab_size < vocab_size:  # a head computes more than there are tokens
                found = LLTokenizer(text, n_vocab=vocab_size, eos_token=ends)
            return found

        self._tokenizer = self._compiling.submit(read)

    def compile(self, grammar: str) -> Future[Matcher]:
        kept = self._kept.get(grammar)
        if kept is None:
            kept = self._kept[grammar] = self._compiling.submit(self._compile, grammar)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        return kept

    def masks(self, turns: Sequence[Turn]) -> Future[Masks]:
        return self._masking.submit(self._masks, turns)

    def _compile(self, grammar: str) -> Matcher:
        try:
            tokenizer = self._tokenizer.result()
        except Exception as error:  # the library raises nothing more special
            raise GrammarInvalid(f"the model's tokenizer cannot be used: {error}") from error
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # forks know what the first mask took to find out
        if matcher.is_error():
            raise GrammarInvalid(matcher.get_error()[:500])
        return GrammarMatcher(matcher)

    def _masks(self, turns: Sequence[Turn]) -> Masks:
        words = -(-self._tokenizer.result().vocab_size // 32)
        first = list(accumulate((1 + len(turn.drafts) for turn in turns), initial=0))
        bits = np.zeros((first[-1], words), dtype=np.int32)
        placed = list(zip(first, turns, strict=False))
        plain = [(_inner(turn.matcher), row) for row, turn in placed if not turn.drafts]
        ahead = [
            (_inner(turn.matcher), row, list(turn.drafts)) for row, turn in placed if turn.drafts
        ]
        to, step = bits.ctypes.data, bits.strides[0]  # bits outlives the calls
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, to, step, len(bits))
        if ahead:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(ahead, to, step, len(bits))
        for row, turn in placed:
            for place, barred in enumerate(turn.barred):
                if barred:
                    _bar(bits[row + place], barred)
        return Masks({turn.sequence: row for row, turn in placed}, bits)


def within(tokenizer: str, vocab_size: int) -> str:
    """A tokenizer.json without the tokens, and the merges to them, that a model does not have."""
    found = json.loads(tokenizer)
    found["added_tokens"] = [t for t in found["added_tokens"] if t["id"] < vocab_size]
    model = found["model"]
    if isinstance(model["vocab"], list):  # Unigram: by number
        model["vocab"] = model["vocab"][:vocab_size]
        return json.dumps(found)
    known = {token: number for token, number in model["vocab"].items() if number < vocab_size}
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    model["merges"] = [pair for pair in merges if {*pair, "".join(pair)} <= known.keys()]
    model["vocab"] = known
    return json.dumps(found)


def _inner(matcher: Matcher) -> LLMatcher:
    assert isinstance(matcher, GrammarMatcher)
    return matcher.inner


def _bar(row: np.ndarray[tuple[int], np.dtype[np.int32]], barred: tuple[int, ...]) -> None:
    """What the grammar leaves, without these; where nothing is left, the grammar alone counts."""
    left = row.copy()
    for token in barred:
        if token < 32 * len(left):
            left.view(np.uint32)[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
    if left.any():
        row[:] = left
