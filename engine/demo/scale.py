"""How much the base says and speculators learn, and how much of it at once."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    questions: int  # that the base invents
    answer: int  # tokens, at most
    speaking: int  # texts continued at once
    listening: int  # conversations of a pass of the base over what it said
    learning: int  # conversations of a step
    draft_epochs: int
    head_epochs: int
    depths: tuple[int, ...]  # turns of a batch of the head, in each equal part of its training
    frequent: int  # tokens said most, ...
    others: int  # ... and by chance, that a step of the head is measured on


# What two cores do in a quarter of an hour.
SMALL = Scale(
    questions=192, answer=96, speaking=192, listening=8, learning=8,
    draft_epochs=2, head_epochs=6, depths=(1, 2, 3), frequent=4096, others=1024,
)  # fmt: skip
# What a data centre's GPU does in five minutes.
LARGE = Scale(
    questions=98304, answer=128, speaking=4096, listening=128, learning=64,
    draft_epochs=2, head_epochs=6, depths=(2, 3, 4), frequent=16384, others=0,
)  # fmt: skip


class Allowance:
    """Time that a job may take; None: as long as it takes."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._begun = seconds, time.monotonic()

    def spent(self) -> float:
        """The share of it."""
        if self._seconds is None:
            return 0.0
        return min(1.0, (time.monotonic() - self._begun) / self._seconds)
