"""Where the engines are. An engine is an address, whatever runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Directory(Protocol):
    def addresses(self) -> Sequence[str]:
        """``unix:PATH`` or ``tcp:HOST:PORT`` of every engine that may be tried."""
        ...


@dataclass(frozen=True, slots=True)
class Static:
    """Named in the settings."""

    engines: tuple[str, ...]

    def addresses(self) -> Sequence[str]:
        return self.engines
