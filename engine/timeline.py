"""What an engine's start took, phase by phase."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)


class Timeline:
    """Seconds from one mark to the next. Belongs to the thread that starts the engine."""

    def __init__(
        self, *, began: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``began``: on the clock; None: now."""
        self._clock = clock
        self._began = self._last = clock() if began is None else began
        self.phases: list[tuple[str, float]] = []

    @classmethod
    def of_process(cls) -> "Timeline":
        """From when this process began: Python and what it imports belong to a start."""
        return cls(began=_process_began())

    def mark(self, phase: str) -> None:
        """What was done since the last mark."""
        now = self._clock()
        self.phases.append((phase, now - self._last))
        self._last = now

    def tell(self) -> None:
        """Into the log, as ``loratorio bench start`` reads it."""
        parts = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in self.phases)
        log.info("started in %.2f s: %s", self._last - self._began, parts)


def _process_began() -> float:
    """On the monotonic clock; to a hundredth of a second."""
    try:
        facts = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(facts[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # another system than Linux
        return time.monotonic()
    return time.monotonic() - age
