"""Whether drafts pay: what passes that verify bring and take, against plain ones.

Passes are compared by how many sequences decode in them, in powers of two: a verifying pass brings
1 + a tokens for each and takes t, a plain one brings 1 and takes t0, so drafts pay while
(1 + a) t0 > t. Where they do not, speculation rests for some passes, twice as many each time, and
then tries again; what it takes to start again is more than to go on. Now and then one pass is plain
while drafts pay, since contexts grow.

Where passes can run ahead, waiting for drafts that nobody makes costs what running ahead saves:
after some passes without any it pauses, for shorter than it rests. Belongs to the engine loop's
thread.
"""

from dataclasses import dataclass

BLEND = 0.1  # how far an estimate moves towards a sample
TRIED = 16  # verifying passes before there is a verdict
PLAIN = 4  # plain passes before the first that verifies
LOOK = 64  # verifying passes after which one is plain
REST = 64  # passes that rest first
LONGEST_REST = 4096
GO_ON = 1.0  # tokens a second, against those of plain passes, below which it rests
START = 1.05  # and above which it starts again
EMPTY = 8  # passes for which nobody made drafts before a pause
PAUSE = 16  # passes that pause first, and twice as many each time
LONGEST_PAUSE = 64
OUTLIER = 4.0  # a sample counts as at most this many times the estimate


@dataclass(slots=True)
class _Rate:
    """Of passes with about as many sequences."""

    plain_s: float = 0.0  # 0: none was seen
    plains: int = 0
    verifying_s: float = 0.0
    kept: float = 0.0  # drafts kept for each sequence
    tried: int = 0  # verifying passes since the last rest
    since_plain: int = 0
    resting: int = 0  # passes left
    rest: int = REST  # passes of the next rest
    empty: int = 0  # passes since the last that verified, or paused
    pause: int = PAUSE
    proven: bool = False  # not since the last rest: it has to show more

    @property
    def gain(self) -> float | None:
        """Tokens a second against those of plain passes; None: nobody knows yet."""
        if not self.plain_s or not self.verifying_s or self.tried < TRIED:
            return None
        return (1 + self.kept) * self.plain_s / self.verifying_s


class Payoff:
    def __init__(self, *, ahead: bool = False) -> None:
        """``ahead``: passes run ahead while it rests."""
        self._ahead = ahead
        self._rates: dict[int, _Rate] = {}

    def pays(self, sequences: int) -> bool:
        """Whether the next pass is to verify drafts, of so many sequences that decode."""
        rate = self._of(sequences)
        return not rate.resting and rate.plains >= PLAIN and rate.since_plain < LOOK

    def gain(self, sequences: int) -> float | None:
        return self._of(sequences).gain

    def took(self, seconds: float, *, sequences: int, verified: int, kept: int) -> None:
        """A pass that only decoded took so long, with so many drafts, of which so many were
        kept."""
        rate, wanted = self._of(sequences), self.pays(sequences)
        if rate.resting:
            rate.resting -= 1
        if not verified:
            self._wait(rate, wanted)
            rate.plain_s = _towards(rate.plain_s, seconds)
            rate.plains += 1
            rate.since_plain = 0
            return
        rate.empty, rate.pause = 0, PAUSE
        first = not rate.tried
        rate.verifying_s = _towards(0.0 if first else rate.verifying_s, seconds)
        sample = kept / sequences
        rate.kept = sample if first else rate.kept + BLEND * (sample - rate.kept)
        rate.tried += 1
        rate.since_plain += 1
        self._judge(rate)

    def _wait(self, rate: _Rate, wanted: bool) -> None:
        """A pass verified nothing, although it was ``wanted``."""
        rate.empty += wanted and self._ahead
        if rate.empty >= EMPTY:
            rate.empty, rate.resting = 0, rate.pause
            rate.pause = min(2 * rate.pause, LONGEST_PAUSE)

    def _judge(self, rate: _Rate) -> None:
        gain = rate.gain
        if gain is None:
            return
        if gain >= (GO_ON if rate.proven else START):
            rate.proven, rate.rest = True, REST
        elif gain < GO_ON or not rate.proven:
            rate.resting, rate.rest = rate.rest, min(2 * rate.rest, LONGEST_REST)
            rate.tried, rate.proven = 0, False

    def _of(self, sequences: int) -> _Rate:
        return self._rates.setdefault(sequences.bit_length(), _Rate())


def _towards(estimate: float, sample: float) -> float:
    if not estimate:
        return sample
    return estimate + BLEND * (min(sample, OUTLIER * estimate) - estimate)
