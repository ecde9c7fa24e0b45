"""Decode steps and prefill of an engine alone, beside the best peer and the roofline floor.

Protocol of the stored peers: prompts of 512 random tokens, greedy, ignore_eos; the decode step is
(time for 144 new tokens - time for 16) / 128, so the context during it is 528 to 656 tokens.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.bench.floor import H200, Device, Precision, Work, decode_floor, prefill_floor
from engine.bench.rows import Peer, Row, best_peers
from engine.bench.shapes import Shape

PROMPT, LONG, SHORT = 512, 144, 16
MIXES = (
    (1, 0), (1, 1), (8, 0), (8, 1), (8, 4), (32, 0), (32, 1), (32, 16), (64, 0), (64, 1), (64, 4),
    (64, 16), (64, 64), (128, 0), (128, 64), (256, 0), (256, 64),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured: a model's shape, its format on disk, the rank of its adapters."""

    shape: Shape
    format: str
    rank: int = 16
    device: Device = H200

    @property
    def precision(self) -> Precision:
        return Precision() if self.format != "fp16" else Precision(weight_bits=16, group=0)


def decode_rows(
    engine: LoneEngine, setting: Setting, mixes: Sequence[tuple[int, int]] = MIXES
) -> list[Row]:
    """Median, mean by the peers' protocol, and P99 of a decode step, for each (rows, adapters)."""
    found = []
    for batch, adapters in mixes:
        steps = _steady_steps(engine, batch, adapters, setting.rank)
        work = Work(rows=batch, context=590, adapters=adapters, rank=setting.rank)
        floor = decode_floor(setting.shape, work, setting.device, setting.precision) * 1e3
        measured = {
            "step": statistics.fmean(steps),
            "step median": statistics.median(steps),
            "step P99": statistics.quantiles(steps, n=100)[98],
        }
        for metric, seconds in measured.items():
            row = _row(setting, "decode", batch, adapters, metric, seconds * 1e3, "ms", floor)
            found.append(row)
    return found


def prefill_rows(engine: LoneEngine, setting: Setting) -> list[Row]:
    """32 prompts of 1024 tokens, one token out."""
    found = []
    for adapters in (0, 1, 32):
        _warm(engine, adapters, setting.rank)
        seconds = min(_prefill(engine, adapters, setting.rank, seed) for seed in range(3))
        rank = setting.rank if adapters else 0
        least = prefill_floor(
            setting.shape, prompts=32, length=1024, rank=rank, device=setting.device
        )
        rate, best = 32 * 1024 / seconds, 32 * 1024 / least
        row = _row(setting, "prefill", 32, adapters, "input throughput", rate, "tok/s", best)
        found.append(row)
    return found


def _steady_steps(engine: LoneEngine, batch: int, adapters: int, rank: int) -> list[float]:
    """Seconds of the passes in which every row decodes, from its 16th token to its 144th."""
    _warm(engine, adapters, rank)
    requests = Requests()
    for i in range(batch):
        prompt = engine.random_prompt(PROMPT, seed=i)
        adapter = adapter_ref(i % adapters, rank) if adapters else None
        engine.submit(f"r{i}", prompt, LONG, adapter)
    steps = []
    for seconds in engine.passes(requests):
        lengths = [len(tokens) for tokens in requests.outputs.values()]
        if len(lengths) == batch and min(lengths) > SHORT and not requests.finished:
            steps.append(seconds)
    return steps


def _warm(engine: LoneEngine, adapters: int, rank: int) -> None:
    """Bring the adapters into pages and compile what is not compiled."""
    for i in range(max(adapters, 1)):
        adapter = adapter_ref(i, rank) if adapters else None
        engine.submit(f"w{i}", engine.random_prompt(32, seed=i), 2, adapter)
    for _ in engine.passes(Requests()):
        pass


def _prefill(engine: LoneEngine, adapters: int, rank: int, seed: int) -> float:
    for i in range(32):
        prompt = engine.random_prompt(1024, seed=seed * 100 + i)
        engine.submit(f"p{i}", prompt, 1, adapter_ref(i % adapters, rank) if adapters else None)
    return sum(engine.passes(Requests()))


def _row(
    setting: Setting, bench: str, batch: int, adapters: int, metric: str, value: float,
    unit: str, floor: float,
) -> Row:  # fmt: skip
    name = metric.removesuffix(" median").removesuffix(" P99")
    bare = Row(
        bench=bench, model=setting.shape.name, format=setting.format,
        rank=setting.rank if adapters else 0, batch=batch, adapters=adapters, context=PROMPT,
        metric=name, value=value, unit=unit,
    )  # fmt: skip
    peer: Peer | None = best_peers(setting.device.name).get(bare.key)
    return Row(
        bench=bench, model=bare.model, format=bare.format, rank=bare.rank, batch=batch,
        adapters=adapters, context=PROMPT, metric=metric, value=value, unit=unit, floor=floor,
        peer=peer.name if peer else "", peer_value=peer.value if peer else None,
    )  # fmt: skip
