"""Grammars over the fake runner's tokens, in which every place allows other tokens.

``7/3``: seven tokens, the i-th of which leaves i % 3 when divided by 3. So a mask of another place
would show. ``bad`` is no grammar, ``4/3!`` fails at its fourth token, and of ``4/3?`` no mask is
made at its fourth place. A slow compiler's futures are settled by hand.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from engine.errors import GrammarInvalid
from engine.matcher import Matcher, Turn
from engine.step import Masks

VOCAB = 97
WORDS = -(-VOCAB // 32)


@dataclass
class FakeMatcher:
    length: int
    modulus: int
    fails: bool
    late: bool = False
    taken: list[int] = field(default_factory=list)
    broken: bool = False

    @property
    def complete(self) -> bool:
        return len(self.taken) >= self.length

    @property
    def fault(self) -> str:
        return "too complex" if self.broken else ""

    def allows(self, token: int) -> bool:
        return not self.complete and token % self.modulus == len(self.taken) % self.modulus

    def take(self, token: int) -> None:
        assert self.allows(token), f"token {token} after {self.taken}"
        self.taken.append(token)
        self.broken = self.fails and self.complete

    def fitting(self, tokens: Sequence[int]) -> int:
        ahead = self.fork()
        for count, token in enumerate(tokens):
            if not ahead.allows(token):
                return count
            ahead.taken.append(token)
        return len(tokens)

    def fork(self) -> "FakeMatcher":
        return FakeMatcher(self.length, self.modulus, self.fails, self.late, list(self.taken))


@dataclass
class FakeGrammars:
    """Grammars. ``masked`` counts the masks that were made."""

    slow: bool = False
    compiling: list[tuple[str, Future[Matcher]]] = field(default_factory=list)
    masked: int = 0

    def compile(self, grammar: str) -> Future[Matcher]:
        future: Future[Matcher] = Future()
        self.compiling.append((grammar, future))
        if not self.slow:
            self.settle()
        return future

    def settle(self) -> None:
        for grammar, future in self.compiling:
            if grammar == "bad":
                future.set_exception(GrammarInvalid("unknown name"))
                continue
            length, modulus = grammar.rstrip("!?").split("/")
            fails, late = grammar.endswith("!"), grammar.endswith("?")
            future.set_result(FakeMatcher(int(length), int(modulus), fails, late))
        self.compiling.clear()

    def masks(self, turns: Sequence[Turn]) -> Future[Masks]:
        rows, made = list[np.ndarray[tuple[int], np.dtype[np.int32]]](), dict[int, int]()
        for turn in turns:
            assert isinstance(turn.matcher, FakeMatcher)
            if turn.matcher.late and len(turn.matcher.taken) + 1 == turn.matcher.length:
                turn.matcher.broken = True
                continue
            made[turn.sequence] = len(rows)
            matcher = turn.matcher.fork()
            for barred, draft in zip(turn.barred, [*turn.drafts, -1], strict=True):
                rows.append(_row(matcher, barred))
                matcher.taken.append(draft)
        self.masked += len(turns)
        future: Future[Masks] = Future()
        bits = np.stack(rows) if rows else np.zeros((0, WORDS), dtype=np.int32)
        future.set_result(Masks(made, bits))
        return future


def _row(matcher: FakeMatcher, barred: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    bits = np.zeros(WORDS, dtype=np.int32)
    for token in range(VOCAB):
        if matcher.allows(token) and token not in barred:
            bits.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
    return bits


def may(row: np.ndarray[tuple[int], np.dtype[np.int32]], token: int) -> bool:
    return bool(row.view(np.uint32)[token // 32] >> token % 32 & 1)
