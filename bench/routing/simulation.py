"""A fleet in simulated time: gateways that each see a part of the traffic, and engines that come
and go. Only the decisions are real; how long they take is measured."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from bench.routing.engines import SimEngine
from bench.routing.policies import Policy
from bench.routing.traffic import Arrival

REFRESH_S = 0.05  # how often a gateway looks at a large fleet, as ``gateway/fleet/fleet.py`` does
TELL_S = 0.1  # how often engines tell what they hold


@dataclass(slots=True)
class Seen:
    """What one run showed, of the arrivals that count."""

    requests: int = 0
    warm: int = 0
    prompt_tokens: int = 0
    found_tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)  # the busiest engine's load over the mean


@dataclass(slots=True)
class Simulation:
    gateways: Sequence[Policy]
    engines: list[SimEngine]
    _ends: list[tuple[float, int, SimEngine]] = field(default_factory=list)
    _served: int = 0
    _refreshed: float = -1.0
    _told: float = -1.0

    def run(self, arrivals: Iterable[Arrival], *, timed: bool = True) -> Seen:
        """Goes on from where the last run ended."""
        seen = Seen()
        for arrival in arrivals:
            self._until(arrival.at, seen)
            gateway = self.gateways[self._served % len(self.gateways)]
            self._served += 1
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            engine = gateway.choose(arrival.wish)
            if timed:
                seen.cpu_ns.append(time.thread_time_ns() - cpu)
                seen.wall_ns.append(time.perf_counter_ns() - wall)
            warm, found, first, last = engine.take(arrival)
            heappush(self._ends, (arrival.at + last, self._served, engine))
            seen.requests += 1
            seen.warm += warm
            seen.prompt_tokens += arrival.prompt
            seen.found_tokens += found
            seen.first_s.append(first)
        return seen

    def replace(self, count: int, newcomers: Iterator[SimEngine]) -> None:
        """So many engines leave at once, with all they held, and as many come that hold nothing."""
        self.engines = [*self.engines[count:], *(next(newcomers) for _ in range(count))]
        self._refreshed = -1.0

    def _until(self, now: float, seen: Seen) -> None:
        while self._ends and self._ends[0][0] <= now:
            heappop(self._ends)[2].running -= 1
        if now - self._told >= TELL_S:
            self._told = now
            for engine in self.engines:
                engine.tell()
            loads = [engine.running for engine in self.engines]
            if total := sum(loads):
                seen.peaks.append(max(loads) * len(loads) / total)
        if now - self._refreshed >= REFRESH_S:
            self._refreshed = now
            for gateway in self.gateways:
                gateway.follow(self.engines)
