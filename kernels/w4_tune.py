"""Find the fastest tile of the Hopper 4-bit product for each shape of a model.

For every (K, N) and bucket of rows it compiles the candidates, throws out those whose result is
not exact on integers, times the rest in a CUDA graph over weights that do not fit in the L2, and
writes the best tile of each as JSON, to which the rule of ``w4_hopper.choose_tile`` is held.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

import torch

from kernels.matmul_w4a16 import pack_w4
from kernels.w4_hopper import BLOCK_K, TILE, Tile, pack_meta, w4_planes

LLAMA_8B = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
QWEN_7B = ((3584, 4608), (3584, 3584), (3584, 37888), (18944, 3584))
LLAMA_70B = ((8192, 10240), (8192, 8192), (8192, 57344), (28672, 8192))
MODELS = {"llama-3.1-8b": LLAMA_8B, "qwen2.5-7b": QWEN_7B, "llama-3.1-70b": LLAMA_70B}
BUCKETS = (16, 32, 64, 128, 256)


def _tile(rows: int, groups: int, blocks: int, rest: tuple[int, int, int, int]) -> Tile:
    weight_stages, x_stages, registers, cap = rest
    return Tile(
        rows=rows, groups=groups, blocks=blocks, weight_stages=weight_stages,
        x_stages=x_stages, registers=registers, cap=cap,
    )  # fmt: skip


CANDIDATES = {
    16: (
        _tile(16, 1, 2, (4, 8, 0, 80)),
        _tile(16, 1, 2, (4, 4, 0, 80)),
        _tile(16, 1, 2, (3, 4, 0, 80)),
        _tile(16, 1, 2, (2, 4, 0, 80)),
        _tile(16, 2, 1, (4, 8, 104, 80)),
        _tile(16, 2, 1, (3, 4, 80, 64)),
        _tile(16, 2, 2, (3, 8, 168, 0)),
        _tile(16, 4, 1, (4, 4, 112, 0)),
    ),
    32: (
        _tile(32, 2, 2, (4, 8, 232, 0)),
        _tile(32, 4, 1, (4, 4, 112, 0)),
        _tile(32, 4, 1, (4, 8, 112, 0)),
        _tile(32, 2, 1, (4, 4, 104, 80)),
        _tile(32, 1, 2, (3, 4, 0, 128)),
    ),
    64: (
        _tile(64, 2, 2, (4, 4, 232, 0)),
        _tile(64, 2, 2, (3, 8, 232, 0)),
        _tile(64, 4, 1, (4, 4, 112, 0)),
        _tile(64, 2, 1, (4, 4, 104, 80)),
    ),
    128: (
        _tile(128, 2, 1, (4, 8, 232, 0)),
        _tile(128, 2, 1, (4, 4, 232, 0)),
        _tile(64, 2, 2, (4, 4, 232, 0)),
        _tile(64, 2, 1, (4, 4, 104, 80)),
    ),
    256: (
        _tile(128, 2, 1, (4, 8, 232, 0)),
        _tile(256, 2, 1, (3, 4, 232, 0)),
    ),
}


def candidates(rows: int, inputs: int, outputs: int) -> Iterator[Tile]:
    """Every tile worth trying for a problem, its split of K filled in."""
    blocks = inputs // BLOCK_K
    for tile in CANDIDATES[rows]:
        if outputs % tile.columns:
            continue
        programs = outputs // tile.columns * -(-rows // tile.rows)
        limit = 330 if rows >= 64 else 900
        splits = [
            s
            for s in range(1, 17)
            if -(-blocks // -(-blocks // s)) == s and blocks >= 2 * s and programs * s <= limit
        ]
        for s in _spread([s for s in splits if programs * s >= 90]) or [max(splits, default=1)]:
            yield replace(tile, splits=s)


def _spread(splits: list[int]) -> list[int]:
    """At most four of the numbers of parts, the smallest and the largest among them."""
    if len(splits) <= 4:
        return splits
    return [splits[round(i * (len(splits) - 1) / 3)] for i in range(4)]


class Problem:
    """One (K, N) with integer weights whose products are exact in float16 and float32."""

    def __init__(self, inputs: int, outputs: int, *, group: int = 128) -> None:
        device = torch.device("cuda")
        random = torch.Generator(device=device).manual_seed(inputs + outputs)
        codes = torch.randint(0, 16, (inputs, outputs), generator=random, device=device)
        zeros = torch.randint(0, 17, (inputs // group, outputs), generator=random, device=device)
        scales = torch.randint(1, 3, (inputs // group, outputs), generator=random, device=device)
        packed = pack_w4(codes.to(torch.uint8), scales.half(), zeros, group=group)
        spread = torch.arange(inputs, device=device) // group
        self.group, self.random = group, random
        self.weight = (codes - zeros[spread]).float() * scales[spread].float()
        copies = int(300e6 // packed.words.nbytes) + 2
        self.words = [packed.words.clone() for _ in range(copies)]
        self.meta = [pack_meta(packed.scales, packed.zeros) for _ in range(copies)]

    def x(self, rows: int) -> torch.Tensor:
        shape = (rows, self.weight.shape[0])
        small = torch.randint(-1, 2, shape, generator=self.random, device="cuda")
        return small.half()

    def exact(self, x: torch.Tensor, tile: Tile) -> bool:
        planes = w4_planes(x, self.words[0], self.meta[0], tile, group=self.group)
        want = x.float() @ self.weight
        got = planes.float().sum(0)
        if tile.splits == 1:  # rounded to float16 once
            want = want.half().float()
        return torch.equal(got, want)

    def microseconds(self, x: torch.Tensor, tile: Tile) -> float:
        def call(i: int) -> None:
            w4_planes(x, self.words[i], self.meta[i], tile, group=self.group)

        return graph_microseconds(call, len(self.words))


def graph_microseconds(call: Callable[[int], object], copies: int) -> float:
    """Median time of one call inside a CUDA graph that calls it once per copy of its weights."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            call(i)
    graph.replay()
    times = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / copies * 1e3)
    return float(sorted(times)[len(times) // 2])


def tune(shapes: list[tuple[int, int]], log: TextIO) -> list[dict[str, object]]:
    """The best tile per shape and bucket; every candidate's time goes to ``log``."""
    table: list[dict[str, object]] = []
    torch.backends.cuda.matmul.allow_tf32 = False
    for inputs, outputs in shapes:
        if outputs % TILE or inputs % BLOCK_K:
            continue
        problem = Problem(inputs, outputs)
        for rows in BUCKETS:
            found = _best(problem, rows, log)
            if found:
                table.append({"inputs": inputs, "outputs": outputs, "bucket": rows} | found)
        del problem
    return table


def _best(problem: Problem, rows: int, log: TextIO) -> dict[str, object] | None:
    x = problem.x(rows)
    best: tuple[float, Tile] | None = None
    tiles = list(candidates(rows, x.shape[1], problem.weight.shape[1]))
    with ThreadPoolExecutor(8) as pool:  # compile side by side; launches are cheap
        verdicts = list(pool.map(lambda tile: _try(problem, x, tile), tiles))
    for tile, verdict in zip(tiles, verdicts, strict=True):
        if verdict:
            log.write(f"{tuple(problem.weight.shape)} M={rows} {verdict}: {tile}\n")
            continue
        time = problem.microseconds(x, tile)
        log.write(f"{tuple(problem.weight.shape)} M={rows} {time:.1f} us: {tile}\n")
        log.flush()
        if best is None or time < best[0]:
            best = (time, tile)
    return None if best is None else {"us": round(best[0], 2), "tile": asdict(best[1])}


def _try(problem: Problem, x: torch.Tensor, tile: Tile) -> str:
    """Why a tile is out of the race, or nothing."""
    torch.cuda.synchronize()  # gives this thread a context, which tensor maps need
    try:
        return "" if problem.exact(x, tile) else "WRONG"
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__} {str(error)[:80]!r}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.w4_tune", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["llama-3.1-8b"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    shapes = [shape for model in options.models for shape in MODELS[model]]
    table = tune(shapes, sys.stderr)
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
