"""One difference between the file and the database, as people read it."""

from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    MADE = "+"
    CHANGED = "~"
    ENDED = "-"


@dataclass(frozen=True, slots=True)
class Change:
    mark: Mark
    path: str  # organisations.acme.projects.web.rates.requests_per_minute
    before: str = ""
    after: str = ""
    secret: str | None = None  # of a key that was made: its text, shown once

    def __str__(self) -> str:
        match self.mark:
            case Mark.CHANGED:
                return f"~ {self.path}: {self.before} -> {self.after}"
            case _:
                facts = self.after or self.before
                return f"{self.mark} {self.path}" + (f": {facts}" if facts else "")
