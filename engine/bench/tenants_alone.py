"""The engine, with torch, that ``loratorio bench churn|fairness|prefix|batching`` measures."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import torch

from engine.bench.alone import LoneEngine, adapter_ref
from engine.bench.checkpoints import kept_checkpoint
from engine.bench.shapes import SHAPES
from engine.bench.traffic import Arrival, Played, Player, quantile
from engine.config import EngineConfig
from engine.protocol import AdapterRef

ROOM = 128  # adapters in host memory at a time
LONGER = 1024  # tokens beside the longest prompt that is asked for


class Alone:
    """Belongs to one thread."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self._began = options, time.monotonic()
        shape = SHAPES[options.shape]
        folder = options.model or kept_checkpoint(options.cache, shape, options.format)
        self.model = options.model.name if options.model else options.shape
        longest = options.max_model_len
        if longest is None and not options.model:
            longest = min(options.long_len + LONGER, shape.max_position)
        self.say("starting the engine")
        self.engine = LoneEngine(
            EngineConfig(
                model=str(folder), max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=max(2048, options.max_num_seqs),
                max_waiting=options.max_waiting, max_model_len=longest,
                max_adapter_loads=2 * ROOM, page_tokens=options.block_size,
                pool_bytes=options.pool_bytes,
                gpu_memory_utilization=options.gpu_memory_utilization,
            ),
            pour=ROOM,
        )  # fmt: skip
        self.core = self.engine.core
        self.longest = self.engine.built.max_model_len
        on_gpu = torch.cuda.is_available()
        self.device = torch.cuda.get_device_name() if on_gpu else f"cpu {torch.get_num_threads()}"
        self.say(f"ready: {self.core.pool.num_pages} pages, at most {self.longest} tokens each")

    def say(self, text: str) -> None:
        """Progress, for whoever watches."""
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", file=sys.stderr, flush=True)

    def player(self) -> Player:
        return Player(self.core, clock=time.perf_counter, sleep=time.sleep)

    def fetch(self, refs: Sequence[AdapterRef]) -> None:
        """Have adapters in host memory; at most ``ROOM``."""
        assert len(refs) <= ROOM, "more adapters than host memory has room for"
        self.engine.fetch(refs)

    def refs(self, first: int, count: int) -> list[AdapterRef]:
        return [adapter_ref(number, self.options.rank) for number in range(first, first + count)]

    def prompt(self, length: int, seed: int) -> list[int]:
        return self.engine.random_prompt(length, seed)

    def one(self, prompt: list[int], adapter: AdapterRef | None = None, answer: int = 1) -> Played:
        """One request by itself."""
        return self.whole(
            [Arrival(at_s=0.0, tenant="t", prompt=prompt, answer=answer, adapter=adapter)]
        )

    def whole(self, wanted: Sequence[Arrival], each: Callable[[], None] = lambda: None) -> Played:
        """Raises RuntimeError unless every request gets all of its tokens."""
        played = self.player().play(wanted, each=each)
        failed = [one for one in played.seen if not one.ended or one.tokens != one.arrival.answer]
        if failed:
            reason = failed[0].refused
            raise RuntimeError(f"{len(failed)} requests did not get their tokens: {reason}")
        return played


def first_token(played: Sequence[Played], share: float = 0.5) -> float:
    """Of all their requests, milliseconds."""
    seen = [one for run in played for one in run.seen]
    return 1000 * quantile((one.to_first_token_s or 0.0 for one in seen), share)
