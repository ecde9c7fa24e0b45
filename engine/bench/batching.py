"""Continuous batching beside static batches: the same requests, all at once or group by group.

In a static batch as many requests as there are places begin together, and the next group begins
when the last of them has ended, as a server without continuous batching does it.
"""

import random

from engine.bench.rows import Found
from engine.bench.tenants_alone import Alone
from engine.bench.traffic import Arrival, Played

GROUPS = 4
LONGEST = 255  # tokens out


class Batching:
    def __init__(self, alone: Alone) -> None:
        self._alone, options = alone, alone.options
        places, draw = options.max_num_seqs, random.Random(options.seed)  # noqa: S311
        longest = max(
            2, min(LONGEST, alone.longest - options.input_len - 1, 4 * options.output_len)
        )
        self._groups = [
            [Arrival(at_s=0.0, tenant="t", prompt=alone.prompt(options.input_len, seed=number),
                     answer=draw.randint(max(1, longest // 8), longest))
             for number in range(first, first + places)]
            for first in range(50_000, 50_000 + GROUPS * places, places)
        ]  # fmt: skip

    def figures(self) -> list[Found]:
        alone = self._alone
        static = [alone.whole(group) for group in self._groups]
        continuous = [alone.whole([_other(one) for group in self._groups for one in group])]
        slow, fast = _rate(static), _rate(continuous)
        alone.say(f"static batches {slow:.0f} tokens/s, continuous {fast:.0f}")
        return [
            ("static batches: throughput", slow, "tokens/s"),
            ("continuous batching: throughput", fast, "tokens/s"),
            ("continuous batching beside static batches", fast / slow, "times"),
        ]


def _other(one: Arrival) -> Arrival:
    """As long, and other tokens: nothing of it was computed before."""
    prompt = [*one.prompt[1:], one.prompt[0]]
    return Arrival(at_s=0.0, tenant="t", prompt=prompt, answer=one.answer)


def _rate(runs: list[Played]) -> float:
    tokens = sum(n for run in runs for _, n in run.tokens)
    return tokens / sum(run.seconds for run in runs)
