"""How far a long job is, told to a person: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, float], None]  # what is being done, and the share of it done, 0..1

_WIDTH = 30
_LINE_EVERY = 0.25  # without a terminal, one line per quarter


class ProgressBar:
    """A ``Progress`` that writes to one stream. Used by one thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._stage = ""
        self._shown = 0.0

    def __call__(self, stage: str, done: float) -> None:
        if stage != self._stage:
            self._finish_line()
            self._stage, self._shown = stage, -1.0
        if self._terminal:
            filled = round(_WIDTH * done)
            bar = "█" * filled + "·" * (_WIDTH - filled)
            self._stream.write(f"\r{bar} {done:4.0%} {stage}\x1b[K")
        elif done - self._shown >= _LINE_EVERY or (done >= 1 > self._shown):
            self._stream.write(f"{stage}: {done:.0%}\n")
            self._shown = done
        self._stream.flush()

    def close(self) -> None:
        """End the last line, so that what follows starts on its own."""
        self._finish_line()
        self._stage = ""

    def _finish_line(self) -> None:
        if self._terminal and self._stage:
            self._stream.write("\n")
