"""Grammars over the fake runner's tokens, in which every place allows other tokens.

``7/3``: seven tokens, the i-th of which leaves i % 3 when divided by 3. So a mask of another place
would show. ``bad`` is no grammar, and ``4/3!`` fails at its fourth token. A slow compiler's
futures are settled by hand.
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

    def fork(self) -> "FakeMatcher":
        return FakeMatcher(self.length, self.modulus, self.fails, list(self.taken))


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
            length, modulus = grammar.rstrip("!").split("/")
            future.set_result(FakeMatcher(int(length), int(modulus), grammar.endswith("!")))
        self.compiling.clear()

    def masks(self, turns: Sequence[Turn]) -> Future[Masks]:
        bits = np.zeros((len(turns), WORDS), dtype=np.int32)
        for row, turn in enumerate(turns):
            assert isinstance(turn.matcher, FakeMatcher)
            for token in range(VOCAB):
                if turn.matcher.allows(token) and token not in turn.barred:
                    bits[row].view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        self.masked += len(turns)
        future: Future[Masks] = Future()
        future.set_result(Masks({turn.sequence: row for row, turn in enumerate(turns)}, bits))
        return future


def may(row: np.ndarray[tuple[int], np.dtype[np.int32]], token: int) -> bool:
    return bool(row.view(np.uint32)[token // 32] >> token % 32 & 1)
