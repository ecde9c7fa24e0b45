"""Times forward passes of the torch half of an engine: no scheduler, no network.

    python -m bench.cpu_step --model DIR [--dtype auto] [--deterministic] [--rounds 30]

Prints one JSON row per case: decode of 1, 2, 4 and 8 rows (of the base alone, and of the base and
three adapters of ranks 4, 8 and 16 mixed) after a prompt of 50 tokens, and the first token of
such a prompt.
"""

import argparse
import json
import statistics
import sys
import time

import torch

from adapters.pack import Factor, PackedAdapter
from bench.cpu_rows import device
from engine.adapter_memory import AdapterMemory
from engine.adapter_table import site_shapes
from engine.bench.rows import commit
from engine.checkpoint import Checkpoint
from engine.composition import build_runner
from engine.config import Device, Dtype, EngineConfig
from engine.models.spec import ModelSpec
from engine.placement import SITES
from engine.protocol import Sampling
from engine.step import NO_ADAPTER, Chunk, Draw, StepPlan

PROMPT = 50
RANKS = (4, 8, 16)
GREEDY = Sampling(temperature=0.0)


class Bench:
    def __init__(self, config: EngineConfig) -> None:
        checkpoint = Checkpoint(config.model)
        self.spec = ModelSpec.read(checkpoint.config)
        self.built = build_runner(config)
        self.page_tokens = config.page_tokens
        self._next_page = 0
        dtype = getattr(torch, self.built.base.dtype)
        for row, rank in enumerate(RANKS):
            memory = self.built.memory
            assert isinstance(memory, AdapterMemory)
            laid = memory.lay_out(random_adapter(self.spec, rank, dtype))
            memory.place(row, laid, self.pages(laid.pages))

    def pages(self, count: int) -> list[int]:
        first = self._next_page
        self._next_page += count
        return list(range(first, self._next_page))

    def first_token(self, adapter: int, rounds: int) -> list[float]:
        pages = self.pages(1 + PROMPT // self.page_tokens)
        plan = StepPlan([self.chunk(list(range(3, 3 + PROMPT)), 0, pages, adapter)])
        return self.time(plan, rounds)

    def decode(self, adapters: list[int], rounds: int) -> list[float]:
        count = -(-(PROMPT + rounds + 4) // self.page_tokens)
        pages = [self.pages(count) for _ in adapters]
        rows = list(zip(adapters, pages, strict=True))
        prompt = list(range(3, 3 + PROMPT))
        self.time(StepPlan([self.chunk(prompt, 0, own, adapter) for adapter, own in rows]), 1)
        seconds = []
        for at in range(PROMPT, PROMPT + rounds):
            plan = StepPlan([self.chunk([7], at, own, adapter) for adapter, own in rows])
            seconds += self.time(plan, 1)
        return seconds[2:]

    def chunk(self, tokens: list[int], start: int, pages: list[int], adapter: int) -> Chunk:
        draw = Draw(sampling=GREEDY, seed=0, position=start, prompt=(), output=())
        return Chunk(
            sequence=pages[0], tokens=tokens, start=start, pages=pages, adapter=adapter, draw=draw
        )

    def time(self, plan: StepPlan, rounds: int) -> list[float]:
        seconds = []
        for _ in range(rounds):
            begin = time.perf_counter()
            self.built.runner.launch(plan).wait()
            seconds.append(time.perf_counter() - begin)
        return seconds


def random_adapter(spec: ModelSpec, rank: int, dtype: torch.dtype) -> PackedAdapter:
    factors = {}
    for layer in range(spec.num_layers):
        for site, shape in site_shapes(spec).items():
            for module, outputs in zip(SITES[site], shape.slices, strict=True):
                a, b = torch.randn(rank, shape.width) * 0.01, torch.randn(outputs, rank) * 0.01
                factors[layer, module] = Factor(a.to(dtype), b.to(dtype))
    return PackedAdapter(f"rank-{rank}", rank, factors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--rounds", type=int, default=30)
    flags = parser.parse_args()
    bench = Bench(
        EngineConfig(
            model=flags.model,
            device=Device.CPU,
            dtype=Dtype(flags.dtype),
            deterministic=flags.deterministic,
        )
    )
    mixed = [0, 0, 1, 1, 2, 2, NO_ADAPTER, NO_ADAPTER]
    cases = {f"decode {n} base": (bench.decode, [NO_ADAPTER] * n, n) for n in (1, 2, 4, 8)}
    cases |= {
        "decode 1 adapter": (bench.decode, [1], 1),
        "decode 8 mixed": (bench.decode, mixed, 8),
    }
    cases |= {"decode 8 of 3 adapters": (bench.decode, [0, 0, 0, 1, 1, 1, 2, 2], 8)}
    cases |= {"first token base": (bench.first_token, NO_ADAPTER, 1)}
    cases |= {"first token adapter": (bench.first_token, 1, 1)}
    about = {
        "commit": commit(),
        "command": " ".join(["python", "-m", "bench.cpu_step", *sys.argv[1:]]),
        "machine": device(),
        "torch": torch.__version__,
        "dtype": bench.built.base.dtype,
    }
    for name, (run, argument, rows) in cases.items():
        seconds = run(argument, flags.rounds)
        middle = statistics.median(seconds)
        facts = {"median_ms": round(middle * 1e3, 2), "best_ms": round(min(seconds) * 1e3, 2)}
        print(json.dumps({"case": name, **facts, "tokens_per_s": round(rows / middle, 1), **about}))


if __name__ == "__main__":
    main()
