"""A line of the request log with the names that people know: a request, or refusals of a kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from gateway.dashboard.quotas import subject_named
from gateway.refusals.models import Refusal
from gateway.usage.models import UsageEvent
from gateway.usage.record import Outcome

TONES = {Outcome.COMPLETED: "good", Outcome.CANCELLED: "", Outcome.DEADLINE: "warn"}


@dataclass(frozen=True, slots=True)
class Line:
    row: UsageEvent
    project: str
    key: str
    adapter: str  # "" for the base
    is_refused = False

    @property
    def tone(self) -> str:
        return TONES.get(Outcome(self.row.outcome), "bad")

    @property
    def first_s(self) -> float | None:
        return self.row.first_ns / 1e9 or None

    @property
    def whole_s(self) -> float:
        return (self.row.finished_at - self.row.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """All of one kind within a minute."""

    row: Refusal
    project: str
    key: str
    names: Mapping[str, str]
    is_refused = True

    @property
    def tone(self) -> str:
        return "bad" if self.row.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "warn"

    @property
    def phrase(self) -> str:
        return HTTPStatus(self.row.status).phrase

    @property
    def by(self) -> str:
        """Whose limit it was, or "" where none was reached."""
        return subject_named(self.row.subject, self.names) if self.row.level else ""

    @property
    def wait_s(self) -> float | None:
        return self.row.wait_ms / 1000 or None
