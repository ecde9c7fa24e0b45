"""Hugging Face ``generate`` on the demo base: what a user would have without a server.

    python -m bench.hf_generate --checkpoint DIR [--adapter DIR ...]

The 4-bit checkpoint is dequantised, so both sides compute with the same weights. Tokens per
second count whole calls, prompts included: greedy, prompts of 50 tokens, a fixed number of
generated tokens, no padding. Adapters are mixed in a batch by PEFT's ``adapter_names``, which is
its own answer to the problem; or requests are served one after another, each with its adapter.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import peft
import torch
from torch import Tensor

from bench import cpu_rows
from engine.bench.rows import Row
from engine.demo.train import ADAPTERS, BASE_MODEL, load_base

PROMPT_TOKENS = 50
STREAMS = 8
BASE = "__base__"  # PEFT's word for rows without an adapter
PACKAGES = ("torch", "transformers", "peft")


@dataclass(frozen=True, slots=True)
class Case:
    bench: str
    batch: int
    adapters: int
    run: Callable[[int], None]  # generates this many tokens for each stream


@torch.inference_mode()
def generate(model: peft.PeftModel, prompts: Tensor, tokens: int, **extra: object) -> None:
    """Exactly ``tokens`` greedy tokens for each prompt [B, T]."""
    found = model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=2,
        **extra,
    )
    assert found.shape == (prompts.shape[0], prompts.shape[1] + tokens)


def cases(model: peft.PeftModel, names: Sequence[str], prompts: Tensor) -> list[Case]:
    """``names`` are loaded adapters; streams take base and adapters in turn."""
    turn = [BASE, *names]
    owners = [turn[stream % len(turn)] for stream in range(STREAMS)]

    def base(rows: Tensor, tokens: int) -> None:
        with model.disable_adapter():
            generate(model, rows, tokens)

    def mixed(tokens: int) -> None:
        generate(model, prompts, tokens, adapter_names=owners)

    def in_turn(tokens: int) -> None:
        for row, owner in enumerate(owners):
            if owner == BASE:
                base(prompts[row : row + 1], tokens)
            else:
                model.set_adapter(owner)
                generate(model, prompts[row : row + 1], tokens)

    return [
        Case("hf generate", 1, 0, lambda tokens: base(prompts[:1], tokens)),
        Case("hf generate, static batch", STREAMS, 0, lambda tokens: base(prompts, tokens)),
        Case("hf generate, adapter_names", STREAMS, len(names), mixed),
        Case("hf generate, one after another", STREAMS, len(names), in_turn),
    ]


def measure(case: Case, tokens: int, repeats: int) -> float:
    """Seconds of one run: the median after a short warm-up."""
    case.run(2)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        case.run(tokens)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def load(checkpoint: Path, adapters: Sequence[Path], dtype: torch.dtype) -> peft.PeftModel:
    model = peft.PeftModel.from_pretrained(
        load_base(checkpoint, dtype), adapters[0], adapter_name=adapters[0].name
    )
    for path in adapters[1:]:
        model.load_adapter(path, adapter_name=path.name)
    return model.to(dtype).eval()


def rows_for(options: argparse.Namespace, dtype: torch.dtype) -> list[Row]:
    model = load(options.checkpoint, options.adapter, dtype)
    random = torch.Generator().manual_seed(0)
    prompts = torch.randint(1000, 40_000, (STREAMS, PROMPT_TOKENS), generator=random)
    known = cases(model, [path.name for path in options.adapter], prompts)
    rank = max(config.r for config in model.peft_config.values())
    rows = []
    for case in known:
        speed = case.batch * options.tokens / measure(case, options.tokens, options.repeats)
        rows.append(_row(case, dtype, rank, "generated tokens", speed, "tokens/s"))
        print(cpu_rows.table(rows[-1:]).splitlines()[1], flush=True)
    first = 1000 * measure(known[0], 1, 5)
    return [*rows, _row(known[0], dtype, rank, "time to first token", first, "ms")]


def _row(case: Case, dtype: torch.dtype, rank: int, metric: str, value: float, unit: str) -> Row:
    return Row(
        bench=case.bench,
        model=BASE_MODEL.rpartition("/")[2],
        format=f"{str(dtype).removeprefix('torch.')} dequantised",
        rank=rank if case.adapters else 0,
        batch=case.batch,
        adapters=case.adapters,
        context=PROMPT_TOKENS,
        metric=metric,
        value=value,
        unit=unit,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hf_generate", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, action="append", help="a PEFT directory; repeat")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args(arguments)
    options.adapter = options.adapter or sorted(
        path.parent for path in ADAPTERS.glob("*/adapter_config.json")
    )
    if not options.adapter:
        parser.error("no adapters: give --adapter, or train the demo's first")
    rows = [row for name in options.dtype for row in rows_for(options, getattr(torch, name))]
    print(cpu_rows.table(rows))
    print(cpu_rows.write(rows, "hf_generate", PACKAGES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
