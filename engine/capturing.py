"""What captured passes share: the capture itself, and the pinned memory their inputs go through."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Outcome = TypeVar("Outcome")


class PinnedStages:
    """Two pinned int32 copies of what the device reads, so that one is filled while one is read."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._pinned = [torch.zeros(shape, dtype=torch.int32).pin_memory() for _ in range(2)]
        self._read = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def send(self, fill: Callable[[torch.Tensor], int], to: torch.Tensor) -> None:
        """``fill`` writes a stage and says how many of its rows the device needs."""
        self._turn = 1 - self._turn
        stage, read = self._pinned[self._turn], self._read[self._turn]
        read.synchronize()
        rows = fill(stage)
        to[:rows].copy_(stage[:rows], non_blocking=True)
        read.record()


def captured(
    work: Callable[[], Outcome], pool: Any, device: torch.device, *, tried: bool = False
) -> tuple[torch.cuda.CUDAGraph, Outcome]:
    """A graph of what ``work`` launches.

    ``pool``: of ``torch.cuda.graph_pool_handle``. ``tried``: it was done before, over as many rows,
    so whatever it launches is compiled and loaded; otherwise it is done once first.
    """
    if not tried:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        outcome = work()
    return graph, outcome
