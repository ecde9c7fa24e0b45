"""What a check came to, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    GOOD = "good"
    WARNING = "warning"  # it works, but not as well or as safely as it could
    BAD = "bad"  # something does not work, or will not


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    health: Health
    said: str
    do: str = ""  # where it is not good


def good(what: str, said: str) -> Finding:
    return Finding(what, Health.GOOD, said)


def warning(what: str, said: str, do: str) -> Finding:
    return Finding(what, Health.WARNING, said, do)


def bad(what: str, said: str, do: str) -> Finding:
    return Finding(what, Health.BAD, said, do)
