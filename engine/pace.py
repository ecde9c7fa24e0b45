"""How fast those who wait come to run, measured while there is no room for all.

Sequences that started, over the time in which somebody could not; what is long ago counts little.
Belongs to the engine loop's thread.
"""

import math

MEMORY_S = 30.0
LEAST_S = 0.5  # of want of room, before anything is said


class Pace:
    def __init__(self) -> None:
        self._started = 0.0
        self._seconds = 0.0
        self._now = 0.0
        self.lacking = False  # whether the last pass left somebody behind for want of room

    @property
    def rate(self) -> float | None:
        """Sequences per second; None while too little was seen."""
        if self._seconds < LEAST_S or not self._started:
            return None
        return self._started / self._seconds

    def passed(self, now: float, *, started: int, lacking: bool) -> None:
        """A pass was planned in which so many started. ``lacking``: some were left behind."""
        if self.lacking:
            seconds = now - self._now
            fading = math.exp(-seconds / MEMORY_S)
            self._started = self._started * fading + started
            self._seconds = self._seconds * fading + seconds
        self._now, self.lacking = now, lacking
