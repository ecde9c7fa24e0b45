"""Grammars by way of llguidance: compiled once, forked for each sequence.

Masks of a pass are made together, over some threads of the library's own and without the
interpreter's lock, so they cost the loop only what the pass itself does not hide. Those of
sequences that took long before are made one by one beside them (``effort``), and a pass goes on
without what it would have to wait too long for. Torch-free.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import monotonic, thread_time

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer

from engine.effort import Effort
from engine.errors import GrammarInvalid
from engine.grammar import compiling_threads, limits
from engine.matcher import Matcher, Turn
from engine.step import Masks

KEPT = 64  # grammars: one that is hard to follow grows to tens of megabytes
PATIENCE_S = 0.1  # a pass waits so long for masks of those that are heavy
SLOW_S = 0.01  # made together: whose they are is looked at closely
SLOW_EACH_S = 0.0005

Row = np.ndarray[tuple[int, int], np.dtype[np.int32]]


class GrammarMatcher:
    """A Matcher."""

    __slots__ = ("effort", "inner")

    def __init__(self, inner: LLMatcher) -> None:
        self.inner, self.effort = inner, Effort()

    @property
    def complete(self) -> bool:
        return not self.effort.given_up and self.inner.is_stopped() and not self.inner.is_error()

    @property
    def fault(self) -> str:
        if self.effort.given_up:  # a thread may be at work on it, and nobody else may touch it
            return self.effort.excess
        return self.inner.get_error() if self.inner.is_error() else self.effort.excess

    def take(self, token: int) -> None:
        since = thread_time()
        self.inner.consume_token(token)
        self.effort.tokens += 1
        self.effort.took(since)

    def fitting(self, tokens: Sequence[int]) -> int:
        since = thread_time()
        fitting = self.inner.validate_tokens(list(tokens))
        self.effort.took(since)
        return fitting

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
        self._apart = ThreadPoolExecutor(threads, thread_name_prefix="masks-apart")
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
        watched = [(row, turn) for row, turn in placed if _effort(turn).watched]
        apart = self._begin_apart(watched, words)
        self._together([at for at in placed if not _effort(at[1]).watched], bits)
        late = self._end_apart(apart, bits)
        for row, turn in placed:
            for place, barred in enumerate(turn.barred):
                if barred:
                    _bar(bits[row + place], barred)
        return Masks({t.sequence: row for row, t in placed if t.sequence not in late}, bits)

    def _together(self, placed: Sequence[tuple[int, Turn]], bits: Row) -> None:
        began = monotonic()
        plain = [(_inner(turn.matcher), row) for row, turn in placed if not turn.drafts]
        ahead = [
            (_inner(turn.matcher), row, list(turn.drafts)) for row, turn in placed if turn.drafts
        ]
        to, step = bits.ctypes.data, bits.strides[0]  # bits outlives the calls
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, to, step, len(bits))
        if ahead:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(ahead, to, step, len(bits))
        if monotonic() - began > SLOW_S + SLOW_EACH_S * len(bits):
            for _, turn in placed:
                _effort(turn).watched = True

    def _begin_apart(self, watched: Sequence[tuple[int, Turn]], words: int) -> list["_Apart"]:
        """Those that took least come first: they wait for none that takes longer."""
        ordered = sorted(watched, key=lambda at: _effort(at[1]).mask)
        return [_Apart(row, turn, self._apart.submit(_alone, turn, words)) for row, turn in ordered]

    def _end_apart(self, apart: Sequence["_Apart"], bits: Row) -> set[int]:
        """Take masks in. Returns the sequences whose masks are not waited for."""
        wait([each.made for each in apart if not _effort(each.turn).heavy])
        wait([each.made for each in apart], PATIENCE_S)
        late = set[int]()
        for each in apart:
            if each.made.done():
                made = each.made.result()
                bits[each.row : each.row + len(made)] = made
            else:
                each.made.cancel()
                _effort(each.turn).given_up = True
                late.add(each.turn.sequence)
        return late


@dataclass(frozen=True, slots=True)
class _Apart:
    row: int
    turn: Turn
    made: Future[Row]


def _alone(turn: Turn, words: int) -> Row:
    """Masks of one sequence, measured. In bits of its own: nobody may be waiting for them."""
    inner, places = _inner(turn.matcher), 1 + len(turn.drafts)
    bits, since = np.zeros((places, words), dtype=np.int32), thread_time()
    ahead = inner.deep_copy() if turn.drafts else inner
    for place, row in enumerate(bits):
        if place:
            ahead.consume_token(turn.drafts[place - 1])
        ahead.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    _effort(turn).masked(since, places)
    return bits


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


def _effort(turn: Turn) -> Effort:
    assert isinstance(turn.matcher, GrammarMatcher)
    return turn.matcher.effort


def _bar(row: np.ndarray[tuple[int], np.dtype[np.int32]], barred: tuple[int, ...]) -> None:
    """What the grammar leaves, without these; where nothing is left, the grammar alone counts."""
    left = row.copy()
    for token in barred:
        if token < 32 * len(left):
            left.view(np.uint32)[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
    if left.any():
        row[:] = left
