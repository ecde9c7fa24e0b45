"""How fast answers came and how they ended, counted so that quantiles can be told of any time.

A count is of requests, by quarter of an hour, project and model, in steps of an eighth of an
octave: a quantile is right to within 5 %. ``first`` is the time from admission to the first
tokens, ``token`` the mean time from one token of a choice to the next; every outcome is a kind of
its own, in one step. Lines of batches are not counted: nobody waits for them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.usage.event import slot_of
from gateway.usage.record import Finished, Outcome, Started

FIRST, TOKEN = "first", "token"
STEPS = 8  # in an octave
MICROSECOND = 1_000  # nanoseconds
FAILURES = (Outcome.FAILED, Outcome.ENGINE_LOST, Outcome.DEADLINE)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Ordered, for writers must lock rows in one order."""

    slot: datetime
    project: str
    model: str
    kind: str
    step: int
    organisation: str


def paces_of(ended: Iterable[tuple[Started, Finished]]) -> Counter[Place]:
    found: Counter[Place] = Counter()
    for started, finished in ended:
        slot = slot_of(started.at_ns)
        where = slot, started.project, started.model[:256]
        found[Place(*where, finished.outcome, 0, started.organisation)] += 1
        for kind, ns in ((FIRST, finished.first_ns), (TOKEN, finished.token_ns)):
            if ns > 0:
                found[Place(*where, kind, step_of(ns), started.organisation)] += 1
    return found


def step_of(ns: int) -> int:
    return max(0, math.floor(STEPS * math.log2(max(ns, MICROSECOND) / MICROSECOND)))


def seconds_of(step: int) -> float:
    """The middle of a step."""
    return float(2 ** ((step + 0.5) / STEPS) * MICROSECOND / 1e9)


def quantile(steps: Mapping[int, int], share: float) -> float | None:
    """In seconds; None where nothing was counted."""
    wanted, seen = math.ceil(share * sum(steps.values())), 0
    for step in sorted(steps):
        seen += steps[step]
        if seen >= wanted > 0:
            return seconds_of(step)
    return None
