"""The base models that are served side by side, the first of which is meant where nobody says.

A base is known by its fingerprint, a hash of what quantisation leaves alone; an adapter is bound to
the base it was published for, whatever that is called.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ServedBase:
    name: str  # public, and reserved in every project
    fingerprint: str = ""  # "": nobody wrote it down, so every engine and adapter is taken for its


@dataclass(frozen=True, slots=True)
class Bases:
    all: Sequence[ServedBase]  # not empty

    @property
    def first(self) -> str:
        return self.all[0].name

    @property
    def names(self) -> list[str]:
        return [base.name for base in self.all]

    @property
    def fingerprints(self) -> dict[str, str]:
        """By name; empty where none is known."""
        return {base.name: base.fingerprint for base in self.all if base.fingerprint}

    def require_free(self, name: str, *, param: str) -> None:
        """Raises InvalidRequest: under a base's name nobody could reach an adapter."""
        if name in self.names:
            raise InvalidRequest(
                f"{param} {name!r} is the served model's own name; choose another", param=param
            )

    def name_of(self, fingerprint: str) -> str | None:
        """None: it is not served. What was published before bases were noted is the first's."""
        if not fingerprint or not self.fingerprints:
            return self.first
        return next((base.name for base in self.all if base.fingerprint == fingerprint), None)
