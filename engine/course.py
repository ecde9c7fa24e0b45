"""When things happened to one choice: what latencies are made of."""

from dataclasses import dataclass


@dataclass(slots=True)
class Course:
    """Seconds of the engine's clock; None: has not happened."""

    arrived: float
    started: float | None = None  # the first pass with some of it was launched
    first: float | None = None  # its first token was there
    last: float | None = None  # its latest token was there

    @property
    def queued_s(self) -> float | None:
        return None if self.started is None else self.started - self.arrived

    @property
    def prefill_s(self) -> float | None:
        return _between(self.started, self.first)

    @property
    def decode_s(self) -> float | None:
        return _between(self.first, self.last)

    @property
    def inference_s(self) -> float | None:
        return _between(self.started, self.last)

    @property
    def to_first_token_s(self) -> float | None:
        return None if self.first is None else self.first - self.arrived

    def drew(self, now: float) -> float | None:
        """A token is there. Returns the seconds since the one before; None for the first."""
        before, self.last = self.last, now
        if before is not None:
            return now - before
        self.first = now
        return None


def _between(start: float | None, stop: float | None) -> float | None:
    return None if start is None or stop is None else stop - start
