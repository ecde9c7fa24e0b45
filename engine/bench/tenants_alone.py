"""The engine, with torch, that ``loratorio bench fairness|churn|prefix`` measures."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.bench.alone import LoneEngine, adapter_ref
from engine.bench.checkpoints import CheckpointWriter
from engine.bench.rows import Row
from engine.bench.shapes import SHAPES
from engine.bench.tenants import made
from engine.bench.traffic import Arrival, Played, Player, quantile
from engine.config import EngineConfig
from engine.pages import Kind
from engine.protocol import AdapterRef

SHARED_PAGES, OWN_PAGES = 10, (5, 10, 3)  # of three prompts with one beginning


class Alone:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        folder = options.model or self._checkpoint()
        self.model = options.model.name if options.model else options.shape
        self._engine = LoneEngine(
            EngineConfig(
                model=str(folder), max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=max(2048, options.max_num_seqs),
                max_waiting=options.max_waiting, max_model_len=options.max_model_len,
                max_adapter_loads=256, page_tokens=options.block_size,
                pool_bytes=options.pool_bytes,
            )
        )  # fmt: skip
        on_gpu = torch.cuda.is_available()
        self.device = torch.cuda.get_device_name() if on_gpu else f"cpu {torch.get_num_threads()}"

    def player(self) -> Player:
        return Player(self._engine.core, clock=time.perf_counter, sleep=time.sleep)

    def churn(self) -> list[Row]:
        """Each adapter once, cold in the pool and there in host memory; then once again."""
        options, core = self._options, self._engine.core
        refs = [adapter_ref(number, options.rank) for number in range(options.adapters)]
        self._engine.fetch(refs)
        base = self._steps([None] * options.adapters)
        first = self._steps(refs)
        loads, evictions = core.residency.loads, core.residency.evictions
        again = self._steps(refs)
        figures = [
            ("adapters in the pool", float(core.residency.count), "adapters"),
            ("pages left for KV", float(core.pool.num_pages - core.pool.holdings(Kind.ADAPTER)),
             "pages"),
            ("loads, first time", float(loads), "loads"),
            ("loads, second time", float(core.residency.loads - loads), "loads"),
            ("evictions, first time", float(evictions), "evictions"),
            ("base: P50 to first token", 1000 * _first(base, 0.5), "ms"),
            ("cold adapters: P50 to first token", 1000 * _first(first, 0.5), "ms"),
            ("warm adapters: P50 to first token", 1000 * _first(again, 0.5), "ms"),
            ("base: throughput", base.rate(0), "tokens/s"),
            ("cold adapters: throughput", first.rate(0), "tokens/s"),
            ("warm adapters: throughput", again.rate(0), "tokens/s"),
        ]  # fmt: skip
        return [made(options, "churn", self.model, *figure) for figure in figures]

    def prefix(self) -> list[Row]:
        """Prompts with one beginning, and three whose pages are counted while they run."""
        options, core = self._options, self._engine.core
        beginning = self._prompt(options.input_len, seed=0)
        cold, warm = list[Played](), list[Played]()
        for number in range(options.rounds):
            other = self._prompt(options.input_len, seed=1000 + number)
            cold.append(self._one([*other, *self._prompt(8, seed=number)]))
            self._one([*beginning, *self._prompt(8, seed=100 + number)])
            warm.append(self._one([*beginning, *self._prompt(8, seed=200 + number)]))
        held, apart = self._held()
        figures = [
            ("nothing cached: P50 to first token", 1000 * _median(cold), "ms"),
            ("beginning cached: P50 to first token", 1000 * _median(warm), "ms"),
            ("pages of three with one beginning", float(held), "pages"),
            ("pages of three apart", float(apart), "pages"),
            ("nodes of the tree", float(core.seating.prefix.nodes), "pages"),
        ]
        return [made(options, "prefix", self.model, *figure) for figure in figures]

    def _held(self) -> tuple[int, int]:
        page = self._engine.core.pool
        size = self._options.block_size
        beginning = self._prompt(SHARED_PAGES * size, seed=7)
        prompts = [[*beginning, *self._prompt(own * size - 8, seed=own)] for own in OWN_PAGES]
        self._one(prompts[0])  # its pages are in the tree
        most = 0

        def look() -> None:
            nonlocal most
            most = max(most, page.num_pages - page.free_pages - page.resting_pages)

        wanted = [Arrival(at_s=0.0, tenant="t", prompt=prompt, answer=4) for prompt in prompts]
        self.player().play(wanted, each=look)
        return most - page.holdings(Kind.ADAPTER), sum(SHARED_PAGES + own for own in OWN_PAGES)

    def _steps(self, refs: Sequence[AdapterRef | None]) -> Played:
        options = self._options
        wanted = [
            Arrival(at_s=0.0, tenant="t", prompt=self._prompt(options.input_len, seed=number),
                    answer=options.output_len, adapter=ref)
            for number, ref in enumerate(refs)
        ]  # fmt: skip
        played = self.player().play(wanted)
        _require_all(played)
        return played

    def _one(self, prompt: list[int]) -> Played:
        played = self.player().play([Arrival(at_s=0.0, tenant="t", prompt=prompt, answer=1)])
        _require_all(played)
        return played

    def _prompt(self, length: int, seed: int) -> list[int]:
        return self._engine.random_prompt(length, seed)

    def _checkpoint(self) -> Path:
        shape = SHAPES[self._options.shape]
        folder: Path = self._options.cache / f"{shape.name}-{self._options.format}"
        if not (folder / "config.json").exists():
            CheckpointWriter(shape, self._options.format).write(folder)
        return folder


def _require_all(played: Played) -> None:
    failed = [one for one in played.seen if not one.ended or one.tokens != one.arrival.answer]
    if failed:
        raise RuntimeError(f"{len(failed)} requests did not get their tokens: {failed[0].refused}")


def _first(played: Played, share: float) -> float:
    return quantile((one.to_first_token_s or 0.0 for one in played.seen), share)


def _median(runs: Sequence[Played]) -> float:
    return quantile((_first(played, 0.5) for played in runs), 0.5)
