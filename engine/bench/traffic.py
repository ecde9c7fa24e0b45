"""Requests of several tenants that arrive when they do, whatever the engine does, and what became
of each. The engine is driven in this thread, by real time or by a simulated one.
"""

import gc
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.core import Core, Heard
from engine.protocol import AdapterRef, Refused, Sampling, Step, Submit
from engine.residency import P

GREEDY = Sampling(temperature=0.0)
TOKENS = (10, 240)  # prompts are drawn from these ids, which every vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    at_s: float
    tenant: str
    prompt: Sequence[int]
    answer: int  # tokens
    adapter: AdapterRef | None = None


@dataclass(slots=True)
class Seen:
    """What one request got, in seconds since the start."""

    arrival: Arrival
    first_s: float | None = None  # None: not yet
    last_s: float | None = None
    tokens: int = 0
    ended: bool = False
    refused: str = ""
    answer: list[int] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # when, since the token before

    @property
    def to_first_token_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival.at_s


@dataclass(slots=True)
class Played:
    seen: list[Seen] = field(default_factory=list)
    seconds: float = 0.0  # it took
    tokens: list[tuple[float, int]] = field(default_factory=list)  # when, how many

    def rate(self, since_s: float) -> float:
        """Tokens a second from then on."""
        return sum(n for at, n in self.tokens if at >= since_s) / (self.seconds - since_s)

    def gaps(self, tenant: str, since_s: float = 0.0) -> list[float]:
        """Seconds between one's tokens, of all its requests."""
        return [gap for one in self.of([tenant]) for at, gap in one.gaps if at >= since_s]

    def of(self, tenants: Iterable[str]) -> list[Seen]:
        chosen = set(tenants)
        return [one for one in self.seen if one.arrival.tenant in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One tenant's requests: a Poisson process of so many a second, all alike."""

    tenant: str
    rate: float
    prompt: int  # tokens
    answer: int
    adapter: AdapterRef | None = None


def arrivals(streams: Sequence[Stream], seconds: float, seed: int = 0) -> list[Arrival]:
    """Within so long; the same for the same seed, whatever streams are beside."""
    found = []
    for stream in streams:
        draw = random.Random(f"{seed}/{stream.tenant}")  # noqa: S311
        now = draw.expovariate(stream.rate)
        while now < seconds:
            prompt = [draw.randrange(*TOKENS) for _ in range(stream.prompt)]
            found.append(
                Arrival(at_s=now, tenant=stream.tenant, prompt=prompt, answer=stream.answer,
                        adapter=stream.adapter)
            )  # fmt: skip
            now += draw.expovariate(stream.rate)
    return sorted(found, key=lambda arrival: arrival.at_s)


class Player:
    """Belongs to one thread."""

    def __init__(
        self, core: Core[P], *, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._core, self._clock, self._sleep = core, clock, sleep
        self._number = 0

    def play(
        self,
        wanted: Sequence[Arrival],
        *,
        until_s: float | None = None,
        until: Callable[[Played], bool] = lambda played: False,
        each: Callable[[], None] = lambda: None,
    ) -> Played:
        """``until_s`` or ``until``: stop there, and cancel what is open; else when everything has
        ended. ``each``: called after every pass."""
        gc.freeze()  # what was prepared is not to be looked through again and again
        played, began, coming = Played([Seen(one) for one in wanted]), self._clock(), 0
        names: dict[str, Seen] = {}
        while coming < len(wanted) or self._core.book:
            now = self._clock() - began
            if (until_s is not None and now >= until_s) or until(played):
                break
            while coming < len(wanted) and wanted[coming].at_s <= now:
                names[self._submit(wanted[coming])] = played.seen[coming]
                coming += 1
            computed = self._core.step()
            now = self._clock() - began
            played.tokens.append((now, self._hear(names, now)))
            each()
            if not computed and not self._core.book and coming < len(wanted):
                self._sleep(max(0.0, wanted[coming].at_s - (self._clock() - began)))
        played.seconds = self._clock() - began
        self._clear()
        return played

    def _submit(self, arrival: Arrival) -> str:
        self._number += 1
        name = f"p{self._number}"
        submit = Submit(
            name, arrival.tenant, list(arrival.prompt), arrival.answer, sampling=GREEDY,
            adapter=arrival.adapter, ignore_eos=True,
        )  # fmt: skip
        self._core.inbox.put(Heard(0, submit), force=True)
        return name

    def _hear(self, names: dict[str, Seen], now: float) -> int:
        """Returns how many tokens came."""
        came = 0
        for said in self._core.outbox.take():
            match said.message:
                case Step(outputs):
                    for output in outputs:
                        seen = names[output.request]
                        came += len(output.tokens)
                        seen.tokens += len(output.tokens)
                        seen.answer += output.tokens
                        if seen.last_s is not None and output.tokens:
                            seen.gaps.append((now, now - seen.last_s))
                        seen.last_s = now
                        seen.first_s = now if seen.first_s is None else seen.first_s
                        seen.ended |= output.finish is not None
                case Refused(request, _, detail):
                    names[request].refused = detail
        return came

    def _clear(self) -> None:
        for request in list(self._core.book):
            self._core.cancel(request)
        while self._core.step():
            pass
        self._core.outbox.take()


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share is not above; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(1000 * share) // 1000) - 1)] if ordered else 0.0
