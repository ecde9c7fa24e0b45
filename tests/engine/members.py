"""A team whose members are threads of one process, for tests of what each member holds."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from engine.checkpoint import Checkpoint
from engine.models.spec import ModelSpec
from engine.team.member import Member
from engine.team.shard import Shard
from kernels.planes import summed
from tests.engine.rig import Rig

WAIT_S = 30.0
T = TypeVar("T")


class Table:
    """Where the members meet: each brings something, and all see everything."""

    def __init__(self, size: int) -> None:
        self._barrier, self._brought = threading.Barrier(size), list[Any]([None] * size)

    def bring(self, member: int, thing: T) -> list[T]:
        self._brought[member] = thing
        self._barrier.wait(WAIT_S)
        found = list(self._brought)
        self._barrier.wait(WAIT_S)
        return found


class ThreadGroup:
    """What ``engine.team.group.Group`` does, without processes."""

    def __init__(self, table: Table, member: int) -> None:
        self._table, self.member = table, member

    def total(
        self, planes: torch.Tensor, addend: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        return self.add_up(summed(planes, addend, torch.float32)).to(dtype).unsqueeze(0)

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(torch.stack(self._table.bring(self.member, x.clone())).sum(0))

    def share(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(self._table.bring(self.member, x.clone())[0])

    def side_by_side(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        return torch.cat(self._table.bring(self.member, part), dim=1)[:, :columns].contiguous()

    def least(self, value: int) -> int:
        return min(self._table.bring(self.member, value))

    def agreed(self, fine: bool) -> bool:
        return bool(self.least(int(fine)))


class Members:
    """A rig for each member; they do the same at the same time."""

    def __init__(self, path: Path, size: int, **settings: Any) -> None:
        self._pool, table = ThreadPoolExecutor(size), Table(size)
        whole = ModelSpec.read(Checkpoint(path).config)
        parts = [Member(ThreadGroup(table, i), Shard(i, size, whole)) for i in range(size)]  # type: ignore[arg-type]
        self.rigs = list(self._pool.map(lambda part: Rig(path, member=part, **settings), parts))

    def __enter__(self) -> "Members":
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown()

    def all(self, work: Callable[[Rig], T]) -> Sequence[T]:
        """What each brought, the lead's first."""
        return list(self._pool.map(work, self.rigs))
