"""A very long prompt enters while others decode: what they notice, and how fast it is computed.

First the prompt alone, twice, then beside others. Nothing of it is cached: each has other tokens.
"""

from engine.bench.rows import Found
from engine.bench.tenants_alone import LONGER, Alone
from engine.bench.traffic import Arrival, Played, quantile

QUIET_S = 0.5  # others decode so long before it comes
ANSWER = 4  # tokens of the long one


class Entering:
    def __init__(self, alone: Alone) -> None:
        self._alone, options = alone, alone.options
        self._length: int = min(options.long_len, alone.longest - min(LONGER, alone.longest // 4))
        self._others = max(1, options.max_num_seqs // 2)

    def figures(self) -> list[Found]:
        alone, length = self._alone, self._length
        solo = [alone.one(self._prompt(turn), answer=ANSWER) for turn in range(2)]
        speed = max(length / _first_s(played, "t") for played in solo)
        alone.say(f"{length} tokens alone: {speed:.0f} tokens/s")
        gaps, quiet, speeds = list[float](), list[float](), list[float]()
        for turn in range(2, 4):
            played = self._beside(turn)
            first = _first_s(played, "long")
            gaps += _between(played, QUIET_S, QUIET_S + first)
            quiet += _between(played, QUIET_S / 2, QUIET_S)
            speeds.append(length / first)
        alone.say(f"beside {self._others} others: {max(speeds):.0f} tokens/s")
        return [
            ("tokens of the long prompt", float(length), "tokens"),
            ("others beside the long prompt", float(self._others), "sequences"),
            ("others before it comes: P99 between tokens", 1000 * quantile(quiet, 0.99), "ms"),
            ("others while it enters: P99 between tokens (limit 30)",
             1000 * quantile(gaps, 0.99), "ms"),
            ("long prompt alone", speed, "tokens/s"),
            ("long prompt beside others", max(speeds), "tokens/s"),
            ("long prompt beside others (at least 0.7)", max(speeds) / speed, "share"),
        ]  # fmt: skip

    def _beside(self, turn: int) -> Played:
        alone = self._alone
        others = [
            Arrival(at_s=0.0, tenant="others", prompt=alone.prompt(16, seed=number),
                    answer=alone.longest - 17)
            for number in range(self._others)
        ]  # fmt: skip
        long = Arrival(at_s=QUIET_S, tenant="long", prompt=self._prompt(turn), answer=ANSWER)

        def entered(played: Played) -> bool:
            (one,) = played.of(["long"])
            if one.refused:
                raise RuntimeError(f"the long prompt was refused: {one.refused}")
            return one.first_s is not None

        return alone.player().play([*others, long], until=entered)

    def _prompt(self, turn: int) -> list[int]:
        return self._alone.prompt(self._length, seed=30_000 + turn)


def _first_s(played: Played, tenant: str) -> float:
    """To the first token of its one request."""
    (one,) = played.of([tenant])
    return one.to_first_token_s or 0.0


def _between(played: Played, first: float, last: float) -> list[float]:
    """Seconds between tokens of the others that came in so much of the time."""
    others = played.of(["others"])
    return [gap for one in others for at, gap in one.gaps if first < at <= last]
