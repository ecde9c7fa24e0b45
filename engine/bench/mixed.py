"""512 requests at once of an engine alone: prompts of 512 tokens, 32 to 255 tokens out.

Lengths are drawn with a seed, adapters go round robin. The figure is output tokens over the time
until the last request has ended, prefill included, as the stored peers were measured.
"""

import random
from collections.abc import Sequence

from engine.bench.alone import BenchmarkRefused, LoneEngine, Requests, adapter_ref
from engine.bench.decode import warm
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row

REQUESTS, PROMPT = 512, 512
SHORTEST, LONGEST = 32, 255  # tokens out
MIXES = ((REQUESTS, 0), (REQUESTS, 64))


def lengths(count: int, seed: int = 0) -> list[int]:
    """Tokens that each request asks for."""
    draw = random.Random(seed)  # noqa: S311
    return [draw.randint(SHORTEST, LONGEST) for _ in range(count)]


def mixed_rows(
    engine: LoneEngine,
    setting: Setting,
    mixes: Sequence[tuple[int, int]] = MIXES,
    *,
    prompt: int = PROMPT,
) -> list[Row]:
    """Output tokens per second for each (requests, adapters)."""
    found = []
    for requests, adapters in mixes:
        warm(engine, adapters, setting.rank)
        rate = _throughput(engine, requests, adapters, setting.rank, prompt)
        figure = Figure(
            bench="mixed", metric="output throughput", value=rate, unit="tok/s", batch=requests,
            adapters=adapters, context=prompt,
        )  # fmt: skip
        found.append(row(setting, figure))
    return found


def _throughput(engine: LoneEngine, count: int, adapters: int, rank: int, prompt: int) -> float:
    """Raises BenchmarkRefused when a request did not get its tokens."""
    wanted, requests = lengths(count), Requests()
    for i, tokens in enumerate(wanted):
        adapter = adapter_ref(i % adapters, rank) if adapters else None
        engine.submit(f"m{i}", engine.random_prompt(prompt, seed=i), tokens, adapter)
    seconds = sum(engine.passes(requests))
    got = [len(requests.outputs.get(f"m{i}", ())) for i in range(count)]
    if got != wanted:
        short = sum(a != b for a, b in zip(got, wanted, strict=True))
        raise BenchmarkRefused(f"{short} of {count} requests did not get the tokens they asked for")
    return sum(wanted) / seconds
