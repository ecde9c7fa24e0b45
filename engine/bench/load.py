"""Sends requests to a server, closed loop or open loop, and keeps what each one saw.

Closed loop: so many requests are always under way. Open loop: requests arrive as a Poisson process
whatever the server does, so that a slow server is seen to queue. Which model a request names is
drawn by Zipf's law over the models in the order given: the k-th in proportion to 1 / k^s.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.bench.http_stream import BenchFailed, Model, Stream, stream

TOKENS = (1000, 30_000)  # prompts are drawn from these ids, which every vocabulary has


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send. One of ``concurrency`` (closed loop) and ``rate`` (open loop, per second)."""

    models: Sequence[Model]
    input_len: int
    output_len: int
    num_prompts: int
    concurrency: int | None = None
    rate: float | None = None
    zipf: float = 1.0
    seed: int = 0
    timeout_s: float = 600.0  # of one request
    vocabulary: tuple[int, int] = TOKENS


@dataclass(frozen=True, slots=True)
class Request:
    model: Model
    prompt: tuple[int, ...]
    at_s: float  # when it arrives in an open loop


@dataclass(slots=True)
class Outcome:
    streams: list[Stream] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0  # from the first request to the last answer


def requests(load: Load) -> list[Request]:
    """The same for the same seed."""
    draw = random.Random(load.seed)  # noqa: S311
    weights = [1 / k**load.zipf for k in range(1, len(load.models) + 1)]
    chosen = draw.choices(load.models, weights, k=load.num_prompts)
    now, found = 0.0, []
    for model in chosen:
        prompt = tuple(draw.randrange(*load.vocabulary) for _ in range(load.input_len))
        found.append(Request(model, prompt, now))
        now += draw.expovariate(load.rate) if load.rate else 0.0
    return found


async def run(base_url: str, load: Load, progress: Callable[[Outcome], None]) -> Outcome:
    """``progress`` is called after every request."""
    outcome, waiting = Outcome(), requests(load)
    limit = asyncio.Semaphore(load.concurrency or load.num_prompts)
    began = time.perf_counter()

    async def one(request: Request) -> None:
        try:
            async with asyncio.timeout(load.timeout_s):
                found = await stream(base_url, request.model, request.prompt, load.output_len)
            outcome.streams.append(found)
        except (BenchFailed, OSError, TimeoutError) as failure:
            outcome.failures.append(f"{request.model.name}: {failure or type(failure).__name__}")
        finally:
            limit.release()
        progress(outcome)

    async with asyncio.TaskGroup() as group:
        for request in waiting:
            if load.rate:
                await asyncio.sleep(began + request.at_s - time.perf_counter())
            await limit.acquire()
            group.create_task(one(request))
    outcome.seconds = time.perf_counter() - began
    return outcome
