"""The arithmetic of a rate limit: a bucket that fills with cost and drains with time.

This is GCRA with costs, kept as a level instead of a time so that every number is an integer
and nothing is rounded: the level counts 1/60,000 of a request or token, so a limit of N per
minute drains N units each millisecond. ``admit.lua`` and ``settle.lua`` say the same in Redis.

A limit of N lets N pass at once, and N more in each minute after.
"""

from dataclasses import dataclass

UNIT = 60_000  # level of one request or token; milliseconds in a minute
TIRED = 10**15  # a bucket is reborn before its count of what has gone leaves 53 bits


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is in it, and what has left it since it was born: first in, first out."""

    level: int = 0
    at_ms: int = 0
    gone: int = 0  # units that drained or were given back
    born_ms: int = 0

    def at(self, now_ms: int, limit: int) -> "Bucket":
        """The same bucket later. A lowered limit must not mean an endless wait: it overflows."""
        if self.born_ms == 0 or self.gone > TIRED:
            return Bucket(0 if self.born_ms == 0 else self.level, now_ms, 0, now_ms)
        elapsed = max(0, now_ms - self.at_ms)
        level = max(0, min(self.level, limit * UNIT) - elapsed * limit)
        return Bucket(level, max(now_ms, self.at_ms), self.gone + self.level - level, self.born_ms)

    def plus(self, units: int) -> "Bucket":
        gone = self.gone + max(0, -units)
        return Bucket(self.level + units, self.at_ms, gone, self.born_ms)


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation in a bucket, kept until it is settled."""

    cost: int
    position: int  # it is wholly gone when this much has left the bucket
    born_ms: int  # of the bucket


def wait_ms(level: int, limit: int, cost: int) -> int:
    over = level + (cost - limit) * UNIT
    return -(-over // limit) if over > 0 else 0


def refund(held: Held, used: int, bucket: Bucket) -> int:
    """Units to take out of the bucket; negative when more was used than held.

    What has drained is not given back again, or a long request would let others pass twice.
    """
    if used >= held.cost:
        return (held.cost - used) * UNIT
    still_there = held.position - bucket.gone if held.born_ms == bucket.born_ms else 0
    return max(0, min((held.cost - used) * UNIT, still_there, bucket.level))


def remaining(level: int, limit: int) -> int:
    return max(0, (limit * UNIT - level) // UNIT)


def reset_seconds(level: int, limit: int) -> float:
    """Until the bucket is empty. One that holds nothing is empty always."""
    return -(-level // limit) / 1000 if limit else 0.0
