"""``loratorio bench decode|prefill``: measure an engine alone, beside peers and the floor.

The model is a random checkpoint of a real shape, written once to a cache directory, or any
checkpoint of one of the known shapes. Nothing is reported before the engine has shown, on this
device, that its logits are those of the dequantised weights.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.bench.alone import BenchmarkRefused, LoneEngine, versions
from engine.bench.checkpoints import FORMATS, CheckpointWriter
from engine.bench.correct import check
from engine.bench.decode import MIXES, Setting, decode_rows, prefill_rows
from engine.bench.rows import Report, Row
from engine.bench.shapes import SHAPES
from engine.config import EngineConfig

Measure = Callable[[LoneEngine, Setting], list[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    bench: str
    shape: str
    format: str
    rank: int
    eager: bool
    cache: Path
    out: Path
    mixes: tuple[tuple[int, int], ...]


def main(argv: Sequence[str]) -> int:
    """Returns the process's exit code; 1 when the engine's results were not right."""
    options = _parse(argv)
    shape = SHAPES[options.shape]
    model = options.cache / f"{shape.name}-{options.format}"
    if not (model / "config.json").exists():
        print(f"writing {model}", file=sys.stderr)
        CheckpointWriter(shape, options.format).write(model)
    config = EngineConfig(
        model=str(model), max_model_len=4096, max_num_seqs=256, max_num_batched_tokens=8192,
        enforce_eager=options.eager, max_adapter_loads=256,
    )  # fmt: skip
    try:
        engine = LoneEngine(config)
        print(check(engine, model, rank=options.rank), file=sys.stderr)
        setting = Setting(shape, options.format, options.rank)
        rows = _measures(options)[options.bench](engine, setting)
    except BenchmarkRefused as refusal:
        print(f"not reported: {refusal}", file=sys.stderr)
        return 1
    report = Report(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", rows)
    print(report.table())
    name = f"{options.bench}-{shape.name}-{options.format}-r{options.rank}"
    print(report.write(options.out, name, dict(versions())))
    return 0


def _measures(options: Options) -> dict[str, Measure]:
    return {
        "decode": lambda engine, setting: decode_rows(engine, setting, options.mixes),
        "prefill": prefill_rows,
    }


def _parse(argv: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="loratorio bench", description=__doc__)
    parser.add_argument("bench", choices=("decode", "prefill"))
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--format", choices=FORMATS, default="awq")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--enforce-eager", dest="eager", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "loratorio")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--mixes", nargs="+", metavar="ROWSxADAPTERS", help="e.g. 1x0 64x64")
    found = parser.parse_args(argv)
    mixes = MIXES if found.mixes is None else tuple(_mix(text) for text in found.mixes)
    return Options(**{**vars(found), "mixes": mixes})


def _mix(text: str) -> tuple[int, int]:
    rows, _, adapters = text.partition("x")
    return int(rows), int(adapters)
