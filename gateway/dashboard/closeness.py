"""How close an adapter version is to each engine, and how fast it answered: of one version, for it
asks the engines themselves."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from engine.stream import EngineLost
from gateway.fleet.member import Member
from gateway.usage.pace import FIRST, TOKEN, quantile

ENGINE_SECONDS = 1.0  # the longest wait for an engine's numbers
LOADS = "loratorio_engine_adapter_load_seconds"
EVICTED = "loratorio_engine_adapter_evicted_total"


@dataclass(frozen=True, slots=True)
class Closeness:
    """``loads`` None: the engine did not say, or has not used it for a while."""

    number: int  # engines have no names that are the tenants' business
    resident: bool
    loads: int | None = None
    load_s: float | None = None  # the mean
    evicted: int | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """Under one name: seconds."""

    name: str
    requests: int
    first: tuple[float | None, float | None]  # P50, P99
    token: tuple[float | None, float | None]


async def closeness(members: Sequence[Member], digest: str) -> list[Closeness]:
    texts = await asyncio.gather(*(_metrics(member) for member in members))
    return [
        read(number, digest in member.resident, text, digest)
        for number, (member, text) in enumerate(zip(members, texts, strict=True), 1)
    ]


def speeds(paces: Mapping[str, Mapping[str, Mapping[int, int]]]) -> list[Speed]:
    """From name -> kind -> step -> requests."""
    found = []
    for name, kinds in sorted(paces.items()):
        first, token = kinds.get(FIRST, {}), kinds.get(TOKEN, {})
        ended = sum(sum(steps.values()) for kind, steps in kinds.items()
                    if kind not in (FIRST, TOKEN))  # fmt: skip
        found.append(
            Speed(
                name,
                ended,
                (quantile(first, 0.5), quantile(first, 0.99)),
                (quantile(token, 0.5), quantile(token, 0.99)),
            )
        )
    return found


async def _metrics(member: Member) -> str:
    client = member.client
    if client is None:
        return ""
    try:
        return await client.metrics(timeout_s=ENGINE_SECONDS)
    except (EngineLost, TimeoutError):
        return ""


def read(number: int, resident: bool, text: str, digest: str) -> Closeness:
    mine: dict[str, float] = {}
    lines = [line for line in text.splitlines() if digest in line or line.startswith("# TYPE")]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.labels.get("adapter") == digest:
                mine[sample.name] = sample.value
    if f"{LOADS}_count" not in mine:
        return Closeness(number, resident)
    loads = int(mine[f"{LOADS}_count"])
    mean = mine.get(f"{LOADS}_sum", 0.0) / loads if loads else None
    return Closeness(number, resident, loads, mean, int(mine.get(EVICTED, 0)))
