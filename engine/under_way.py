"""A pass that was launched, and the guard around what it may raise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from engine.errors import DeviceLost, RunnerFault
from engine.planned import Plan
from engine.step import Pending, StepResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A launched pass whose result was not taken in yet."""

    plan: Plan
    pending: Pending
    launched: float  # seconds
    beside: bool  # the host, which worked on something else meanwhile

    def result(self) -> StepResult:
        """Waits for it. Raises whatever the pass did."""
        result = self.pending.wait()
        _verify(self.plan, result)
        return result


def guarded(work: Callable[[], T]) -> T | Exception:
    """The loop's guard: what a pass raises ends the requests in it, and nothing else."""
    try:
        return work()
    except DeviceLost:
        raise
    except Exception as error:
        return error


def _verify(plan: Plan, result: StepResult) -> None:
    if len(result.drawn) != len(plan.planned):
        raise RunnerFault(f"{len(plan.planned)} chunks brought {len(result.drawn)} results")
    for item, drawn in zip(plan.planned, result.drawn, strict=True):
        if item.chunk.draw and drawn.token is None and not drawn.failed:
            raise RunnerFault(f"sequence {item.sequence.number} was to draw and did not")
