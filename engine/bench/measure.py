"""Runs the benchmarks that need torch, one report a benchmark.

The model is a random checkpoint of a real shape, written once to a cache directory, or any
checkpoint of a known shape put there. Nothing is reported before the engine has shown, on this
device, that its logits are those of the dequantised weights.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from engine.bench.alone import BenchmarkRefused, LoneEngine
from engine.bench.attention import attention_rows
from engine.bench.checkpoints import kept_checkpoint
from engine.bench.cli import ENGINE, Options
from engine.bench.correct import check
from engine.bench.decode import MIXES, PREFILLS, decode_rows, prefill_rows
from engine.bench.held import MIXES as HELD
from engine.bench.held import held_rows
from engine.bench.linear import linear_rows
from engine.bench.lora import MIXES as BATCHES
from engine.bench.lora import lora_rows
from engine.bench.mixed import MIXES as REQUESTS
from engine.bench.mixed import mixed_rows
from engine.bench.rows import Report, Row, versions
from engine.bench.setting import Setting, known_device
from engine.bench.shapes import SHAPES, Shape
from engine.bench.speculation import DRAFTS, Script, speculation_rows
from engine.bench.speculation import MIXES as VERIFIED
from engine.bench.vocabulary import write_tokenizer
from engine.config import EngineConfig, HeadDtype
from engine.speculation.settings import Method, SpeculationSettings
from engine.team.ending import end_process

DRAFTED = SpeculationSettings(method=Method.NGRAM, tokens=max(DRAFTS))  # room for as many


def measure(options: Options) -> int:
    """Returns the process's exit code: 1 when anything was refused."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    members = options.tensor_parallel_size
    setting = Setting(
        _shape(options),
        options.format,
        options.rank,
        known_device(name) if members == 1 else None,
        options.kv_cache_dtype.narrow,
        options.head_dtype == HeadDtype.INT8,
        members,
        options.adapter_dtype,
    )
    refused = 0
    whole = [bench for bench in options.benches if bench in ENGINE]
    parts = [bench for bench in options.benches if bench not in ENGINE]
    for bench in parts:  # before an engine takes the memory
        refused += _report(options, bench, name, lambda b=bench: _operation(options, setting, b))  # type: ignore[misc]
        _give_back()
    if whole:
        refused += _with_engine(options, setting, whole, name)
    if members > 1:
        end_process(int(refused > 0))
    return int(refused > 0)


def _shape(options: Options) -> Shape:
    shape = SHAPES[options.shape]
    if options.layers is None:
        return shape
    return replace(shape, name=f"{shape.name}-{options.layers}l", num_hidden_layers=options.layers)


def _give_back() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _with_engine(options: Options, setting: Setting, benches: list[str], device: str) -> int:
    """How many of the benchmarks were refused."""
    try:
        script = Script() if "speculation" in benches else None
        engine = _engine(options, setting.shape, script)
    except BenchmarkRefused as refusal:
        print(f"not reported: {refusal}", file=sys.stderr)
        return len(benches)

    def rows(bench: str) -> Callable[[], list[Row]]:
        return lambda: _whole(options, setting, bench, engine, script)

    try:
        return sum(_report(options, bench, device, rows(bench)) for bench in benches)
    finally:
        engine.built.close()


def _engine(options: Options, shape: Shape, script: Script | None) -> LoneEngine:
    """Shown to be right. Raises BenchmarkRefused."""
    model = kept_checkpoint(options.cache, shape, options.format)
    if not (model / "tokenizer.json").exists():
        write_tokenizer(model / "tokenizer.json", shape.vocab_size)
    rows = 256 if script is None else max(batch for batch, _ in options.mixes or VERIFIED)
    config = EngineConfig(
        model=str(model), max_model_len=min(4096, shape.max_position), max_num_seqs=rows,
        max_num_batched_tokens=8192, enforce_eager=options.eager, max_adapter_loads=256,
        enable_prefix_caching=False,  # every prompt is computed, also one met before
        kv_cache_dtype=options.kv_cache_dtype, head_dtype=options.head_dtype,
        adapter_dtype=options.adapter_dtype,
        tensor_parallel_size=options.tensor_parallel_size,
        disable_custom_all_reduce=options.disable_custom_all_reduce,
        speculation=None if script is None else DRAFTED,
        max_step_s=60.0,  # prompts are not held back: all rows of a mix decode together
    )  # fmt: skip
    engine = LoneEngine(config, script=script)
    print(check(engine, model, rank=options.rank), file=sys.stderr)
    return engine


def _whole(
    options: Options, setting: Setting, bench: str, engine: LoneEngine, script: Script | None
) -> list[Row]:
    if script is not None:
        return speculation_rows(engine, setting, script, options.mixes or VERIFIED)
    if bench == "decode":
        return decode_rows(engine, setting, options.mixes or MIXES)
    if bench == "prefill":
        return prefill_rows(engine, setting, options.mixes or PREFILLS)
    if bench == "held":
        return held_rows(engine, setting, options.mixes or HELD)
    return mixed_rows(engine, setting, options.mixes or REQUESTS)


def _operation(options: Options, setting: Setting, bench: str) -> list[Row]:
    if bench == "linear":
        return linear_rows(setting)
    if bench == "lora":
        return lora_rows(setting, options.mixes or BATCHES)
    return attention_rows(setting)


def _report(options: Options, bench: str, device: str, rows: Callable[[], list[Row]]) -> int:
    """Measure, print and write one benchmark; 1 when it was refused."""
    try:
        report = Report(device, rows(), options.arguments, options.commit)
    except BenchmarkRefused as refusal:
        print(f"{bench} not reported: {refusal}", file=sys.stderr)
        return 1
    print(report.table())
    name = f"{bench}-{_shape(options).name}-{options.format}"
    name += "" if bench in ("linear", "attention") else f"-r{options.rank}"
    name += "-kv-fp8" if options.kv_cache_dtype.narrow else ""
    name += "-head-int8" if options.head_dtype == HeadDtype.INT8 else ""
    codes = options.adapter_dtype.codes
    name += f"-lora-{codes}" if codes else ""
    members = options.tensor_parallel_size
    name += f"-tp{members}" if members > 1 else ""
    name += "-nccl" if options.disable_custom_all_reduce else ""
    print(report.write(options.out, name, versions()))
    return 0
