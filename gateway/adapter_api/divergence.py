"""How far two next-token distributions are apart, and how far they may be.

Both are known over the engine's likeliest tokens; all others count as one token more.
"""

import math
from collections.abc import Sequence

# Mean KL divergence from the float32 reference, in nats, by what the engine computes in. Measured
# on the demo, 4 bits on a CPU, with its three adapters and none: float32 gives less than 1e-7;
# bfloat16, which keeps 8 bits of logits around 20 and of every sum before them, 0.6e-3 to 1.8e-3,
# with an adapter as without. Those adapters move the base by 0.8 to 2.2, and so far off is one
# that is not applied. float16 keeps 3 bits more: its noise is some 60 times below bfloat16's.
LIMITS = {"float32": 1e-3, "float16": 1e-3, "bfloat16": 1e-2}
FALLBACK = "bfloat16"
SAME = 1e-6  # nats: two float32 computations of the same thing


def limit_of(dtype: str) -> float:
    return LIMITS.get(dtype, LIMITS[FALLBACK])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def divergence(served: Sequence[float], wanted: Sequence[float]) -> float:
    """KL(wanted || served) of log-probabilities of the same tokens."""
    total = 0.0
    for q, p in zip(_closed(served), _closed(wanted), strict=True):
        if p > 0:
            total += p * (math.log(p) - math.log(max(q, 1e-30)))
    return total


def _closed(logprobs: Sequence[float]) -> list[float]:
    known = [math.exp(min(logprob, 0.0)) for logprob in logprobs]
    return [*known, max(1.0 - sum(known), 1e-9)]
