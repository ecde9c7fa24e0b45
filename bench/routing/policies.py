"""Ways to choose an engine: ours, and three that look at nothing or at load alone."""

import random
from collections.abc import Sequence
from typing import Protocol

from bench.routing.engines import SimEngine
from gateway.fleet.router import Router, Wish


class Policy(Protocol):
    """One gateway's."""

    def __init__(self, gateways: int = 1) -> None: ...

    def follow(self, engines: Sequence[SimEngine]) -> None:
        """These are there now; they are looked at anew."""
        ...

    def choose(self, wish: Wish) -> SimEngine: ...


class Ours:
    def __init__(self, gateways: int = 1) -> None:
        self._router: Router[SimEngine] = Router(gateways=gateways)
        self._known: set[SimEngine] = set()

    def follow(self, engines: Sequence[SimEngine]) -> None:
        there = set(engines)
        for gone in self._known - there:
            self._router.leave(gone)
        for new in there - self._known:
            self._router.join(new)
        self._known = there
        self._router.refresh()

    def choose(self, wish: Wish) -> SimEngine:
        chosen = self._router.choose(wish)
        assert chosen is not None
        return chosen


class Random:
    def __init__(self, gateways: int = 1) -> None:
        self._random = random.Random(2)
        self._engines: Sequence[SimEngine] = ()

    def follow(self, engines: Sequence[SimEngine]) -> None:
        self._engines = engines

    def choose(self, wish: Wish) -> SimEngine:
        return self._engines[int(self._random.random() * len(self._engines))]


class RoundRobin:
    def __init__(self, gateways: int = 1) -> None:
        self._next = 0
        self._engines: Sequence[SimEngine] = ()

    def follow(self, engines: Sequence[SimEngine]) -> None:
        self._engines = engines

    def choose(self, wish: Wish) -> SimEngine:
        self._next += 1
        return self._engines[self._next % len(self._engines)]


class LeastLoaded:
    """By what engines told last, and what it has sent since."""

    def __init__(self, gateways: int = 1) -> None:
        self._ours = Ours(gateways)

    def follow(self, engines: Sequence[SimEngine]) -> None:
        self._ours.follow(engines)

    def choose(self, wish: Wish) -> SimEngine:
        return self._ours.choose(Wish())


POLICIES: dict[str, type[Policy]] = {
    "ours": Ours,
    "random": Random,
    "round-robin": RoundRobin,
    "least loaded": LeastLoaded,
}
