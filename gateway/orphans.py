"""What the engines recorded of a request that our last run did not finish.

It may have had several prompts, on several engines, and a prompt may have been asked again after
its engine was lost: then the last engine that was asked is the one whose tokens count.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.client import EngineClient
from engine.protocol import Counts
from engine.stream import EngineLost
from gateway.fleet.fleet import Fleet
from gateway.inference.embedding import MOST_INPUTS
from gateway.inference.generation import MOST_AT_ONCE, MOST_LOST
from gateway.inference.wire import MOST_PROMPTS

TRY = re.compile(r"(.+)\+(\d+)")


@dataclass(frozen=True, slots=True)
class _Known:
    counts: Counts
    over: bool  # nothing more will come


@dataclass(frozen=True, slots=True)
class Orphans:
    fleet: Fleet

    async def lookup(self, request: str) -> Counts | None:
        """Without a boot where every engine answers and knows nothing; None where some do not
        answer."""
        members = self.fleet.members
        clients = [client for member in members if (client := member.client) is not None]
        answered, known = 0, list[_Known]()
        for client in clients:
            try:
                known += await _asked(client, request)
                answered += 1
            except (EngineLost, TimeoutError):
                continue
        if known:
            return _together(request, _last_tries(known))
        return Counts(request, "", 0, 0, True) if 0 < len(members) == answered else None


async def _asked(client: EngineClient, request: str) -> list[_Known]:
    """Raises EngineLost, TimeoutError."""
    found = await _counts(client, [request, *_parts(request, range(MOST_AT_ONCE))])
    if any(known.counts.request.startswith(f"{request}-") for known in found):
        rest = range(MOST_AT_ONCE, max(MOST_PROMPTS, MOST_INPUTS))  # they begin in order
        found += await _counts(client, _parts(request, rest))
    return found


async def _counts(client: EngineClient, names: Sequence[str]) -> list[_Known]:
    tries = (f"{name}+{number}" for name in names for number in range(1, MOST_LOST + 1))
    return [
        _Known(counts, counts.finished or counts.boot != client.welcome.boot)
        for counts in await client.counts([*names, *tries])
        if counts.boot
    ]


def _parts(request: str, numbers: Iterable[int]) -> list[str]:
    return [f"{request}-{number}" for number in numbers]  # see Order.submits


def _last_tries(known: Iterable[_Known]) -> list[_Known]:
    """In the order of the prompts as far as they are known."""
    last: dict[str, tuple[int, _Known]] = {}
    for each in known:
        found = TRY.fullmatch(each.counts.request)
        name, number = (found[1], int(found[2])) if found else (each.counts.request, 0)
        if name not in last or last[name][0] <= number:
            last[name] = number, each
    return [each for _, each in last.values()]


def _together(request: str, known: Sequence[_Known]) -> Counts:
    return Counts(
        request=request,
        boot=known[0].counts.boot,
        prompt_tokens=sum(each.counts.prompt_tokens for each in known),
        completion_tokens=sum(each.counts.completion_tokens for each in known),
        cached_tokens=sum(each.counts.cached_tokens for each in known),
        finished=all(each.over for each in known),
    )
