"""A request of the ledger with the names that people know."""

from dataclasses import dataclass

from gateway.usage.models import UsageEvent
from gateway.usage.record import Outcome

TONES = {Outcome.COMPLETED: "good", Outcome.CANCELLED: "", Outcome.DEADLINE: "warn"}


@dataclass(frozen=True, slots=True)
class Line:
    row: UsageEvent
    project: str
    key: str
    adapter: str  # "" for the base

    @property
    def tone(self) -> str:
        return TONES.get(Outcome(self.row.outcome), "bad")

    @property
    def first_s(self) -> float | None:
        return self.row.first_ns / 1e9 or None

    @property
    def whole_s(self) -> float:
        return (self.row.finished_at - self.row.started_at).total_seconds()
