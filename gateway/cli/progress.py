"""How far a long command is: a bar on a terminal; elsewhere a line at each quarter of an upload."""

import time
from typing import TextIO

WIDTH = 30
MEGA = 1_000_000


class ByteBar:
    """Used by one thread."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream, self._total = stream, max(total, 1)
        self._terminal = stream.isatty()
        self._began, self._first = time.monotonic(), -1
        self._quarter = -1

    def show(self, done: int, note: str = "") -> None:
        """``done``: of all bytes, those that need not be sent included."""
        if self._first < 0:
            self._first = done
        share, rate = done / self._total, self._rate(done)
        text = f"{done / MEGA:.1f} of {self._total / MEGA:.1f} MB{rate} {note}".rstrip()
        if self._terminal:
            filled = round(WIDTH * share)
            bar = "█" * filled + "·" * (WIDTH - filled)
            self._stream.write(f"\r{bar} {share:4.0%} {text}\x1b[K")
        elif note or int(share * 4) > self._quarter:
            self._stream.write(f"{share:4.0%} {text}\n")
        self._quarter = int(share * 4)
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._stream.write(f"\r{text}\x1b[K\n" if self._terminal else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._terminal:
            self._stream.write("\n")

    def _rate(self, done: int) -> str:
        seconds, sent = time.monotonic() - self._began, done - self._first
        if sent <= 0 or seconds <= 0:
            return ""
        left = (self._total - done) * seconds / sent
        return f", {sent / seconds / MEGA:.1f} MB/s, {left:.0f} s left"


class Tally:
    """How much was done where nobody knows of how much; on a terminal only."""

    def __init__(self, stream: TextIO, unit: str) -> None:
        self._stream, self._unit = stream, unit
        self._terminal = stream.isatty()

    def show(self, done: int) -> None:
        if self._terminal:
            self._stream.write(f"\r{done} {self._unit}\x1b[K")
            self._stream.flush()

    def close(self) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


class StepBar:
    """Steps of a known number, on a terminal only: elsewhere nothing is written."""

    def __init__(self, stream: TextIO, unit: str) -> None:
        self._stream, self._unit = stream, unit
        self._terminal = stream.isatty()

    def show(self, done: int, total: int) -> None:
        if self._terminal:
            share = done / max(total, 1)
            filled = round(WIDTH * share)
            bar = "█" * filled + "·" * (WIDTH - filled)
            self._stream.write(f"\r{bar} {share:4.0%} {done} of {total} {self._unit}\x1b[K")
            self._stream.flush()

    def close(self) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
