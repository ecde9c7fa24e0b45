"""Decode steps and prefill of an engine alone, beside the best peer and the roofline floor.

Protocol of the stored peers: prompts of 512 random tokens, greedy, ignore_eos; the decode step is
(time for 144 new tokens - time for 16) / 128, so the context during it is 528 to 656 tokens.
"""

import statistics
from collections.abc import Sequence

from engine.bench.alone import BenchmarkRefused, LoneEngine, Requests, adapter_ref
from engine.bench.floor import Work, decode_floor, prefill_floor
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row

PROMPT, LONG, SHORT = 512, 144, 16
MIXES = (
    (1, 0), (1, 1), (8, 0), (8, 1), (8, 4), (32, 0), (32, 1), (32, 16), (64, 0), (64, 1), (64, 4),
    (64, 16), (64, 64), (128, 0), (128, 64), (256, 0), (256, 64),
)  # fmt: skip


PREFILLS = ((32, 0), (32, 1), (32, 32))


def decode_rows(
    engine: LoneEngine, setting: Setting, mixes: Sequence[tuple[int, int]] = MIXES
) -> list[Row]:
    """Median, mean by the peers' protocol, and P99 of a decode step, for each (rows, adapters)."""
    found = []
    for batch, adapters in mixes:
        steps = steady_steps(engine, batch, adapters, setting.rank)
        work = Work(rows=batch, context=590, adapters=adapters, rank=setting.rank)
        floor = _decode_floor(setting, work)
        measured = {
            "step": statistics.fmean(steps),
            "step median": statistics.median(steps),
            "step P99": statistics.quantiles(steps, n=100)[98],
        }
        for metric, seconds in measured.items():
            figure = Figure(
                bench="decode", metric=metric, value=seconds * 1e3, unit="ms", batch=batch,
                adapters=adapters, context=PROMPT, floor=floor,
            )  # fmt: skip
            found.append(row(setting, figure))
    return found


def prefill_rows(
    engine: LoneEngine, setting: Setting, mixes: Sequence[tuple[int, int]] = PREFILLS
) -> list[Row]:
    """Prompts of 1024 tokens, one token out, for each (prompts, adapters)."""
    found = []
    for prompts, adapters in mixes:
        work = Work(rows=prompts, context=1024, adapters=adapters, rank=setting.rank)
        warm(engine, adapters, setting.rank)
        seconds = min(_prefill(engine, work, seed) for seed in range(3))
        figure = Figure(
            bench="prefill", metric="input throughput", value=prompts * 1024 / seconds,
            unit="tok/s", batch=prompts, adapters=adapters, context=1024,
            floor=_prefill_floor(setting, work),
        )  # fmt: skip
        found.append(row(setting, figure))
    return found


def _decode_floor(setting: Setting, work: Work) -> float | None:
    """Milliseconds of a step."""
    if setting.device is None:
        return None
    return decode_floor(setting.shape, work, setting.device, setting.precision) * 1e3


def _prefill_floor(setting: Setting, work: Work) -> float | None:
    """Tokens per second."""
    if setting.device is None:
        return None
    seconds = prefill_floor(
        setting.shape, prompts=work.rows, length=work.context,
        rank=work.rank if work.adapters else 0, device=setting.device,
    )  # fmt: skip
    return work.rows * work.context / seconds


def steady_steps(
    engine: LoneEngine, batch: int, adapters: int, rank: int, *, grammar: str | None = None
) -> list[float]:
    """Seconds of the passes in which every row decodes, from its 16th token to its 144th.

    ``grammar``: what holds every row's answer.

    Raises BenchmarkRefused.
    """
    warm(engine, adapters, rank)
    requests = Requests()
    for i in range(batch):
        prompt = engine.random_prompt(PROMPT, seed=i)
        adapter = adapter_ref(i % adapters, rank) if adapters else None
        engine.submit(f"r{i}", prompt, LONG, adapter, grammar=grammar)
    steps = []
    for seconds in engine.passes(requests):
        lengths = [len(tokens) for tokens in requests.outputs.values()]
        if len(lengths) == batch and min(lengths) > SHORT and not requests.finished:
            steps.append(seconds)
    if len(steps) < 2:
        raise BenchmarkRefused(f"{batch} rows never decoded together")
    return steps


def warm(engine: LoneEngine, adapters: int, rank: int) -> None:
    """Bring the adapters into pages and compile what is not compiled."""
    for i in range(max(adapters, 1)):
        adapter = adapter_ref(i, rank) if adapters else None
        engine.submit(f"w{i}", engine.random_prompt(32, seed=i), 2, adapter)
    for _ in engine.passes(Requests()):
        pass


def _prefill(engine: LoneEngine, work: Work, seed: int) -> float:
    for i in range(work.rows):
        prompt = engine.random_prompt(work.context, seed=seed * 100 + i)
        adapter = adapter_ref(i % work.adapters, work.rank) if work.adapters else None
        engine.submit(f"p{i}", prompt, 1, adapter)
    return sum(engine.passes(Requests()))
