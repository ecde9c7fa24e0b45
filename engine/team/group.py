"""The collectives of a team's members. Every member calls the same ones in the same order.

On CUDA they are launched on the current stream, so that a captured graph has them in it: NCCL's,
and for sums of few rows one launch over each other's memory where that can be reached. On a CPU
they are gloo's. Sums are of numbers in the compute dtype on CUDA and in float32 on a CPU. Between
two members the order of addends changes no bit.
"""

import datetime
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from engine.team.peer_memory import open_peers
from kernels.peer_sum import peer_sum
from kernels.planes import summed

PATIENCE_S = 120.0  # for another member, before a collective is given up
LOADING_S = 600.0  # on CUDA, where this limits nothing once passes are watched (``lead.Watched``)


class Group:
    """Joined by making it, left by ``leave``. One a process: torch keeps it as its default."""

    def __init__(
        self,
        meeting: Path,
        member: int,
        size: int,
        device: torch.device,
        *,
        peer_memory: bool = True,
    ) -> None:
        """``meeting``: a file that does not exist yet, the same for all members.
        ``peer_memory``: whether to use it where it can be reached."""
        self.member, self.size, self._device = member, size, device
        cuda = device.type == "cuda"
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=dist.FileStore(  # type: ignore[attr-defined]
                str(meeting), size
            ),
            rank=member,
            world_size=size,
            timeout=datetime.timedelta(seconds=LOADING_S if cuda else PATIENCE_S),
            device_id=device if cuda else None,
        )
        self._gather = _gathering()
        self._peers = open_peers(member, size, device) if cuda and peer_memory else None
        self._most = 0 if self._peers is None else self._peers.room // max(1, size - 1)

    @property
    def leads(self) -> bool:
        return self.member == 0

    def total(
        self, planes: torch.Tensor, addend: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """[1, T, H] of ``dtype``, of addends on every member: [P, T, H], and perhaps one more.

        Takes the memory of planes where there is but one.
        """
        cuda = self._device.type == "cuda"
        size = planes.shape[-2] * planes.shape[-1] * dtype.itemsize
        if self._peers is not None and size <= self._most:
            return peer_sum(planes, addend, self._peers, dtype).unsqueeze(0)
        kind = dtype if cuda else torch.float32
        alone = len(planes) == 1 and addend is None and planes.dtype == kind
        own = planes[0].contiguous() if alone else summed(planes, addend, kind)
        dist.all_reduce(own)
        return own.to(dtype).unsqueeze(0)

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the members, in place."""
        dist.all_reduce(x)
        return x

    def share(self, x: torch.Tensor) -> torch.Tensor:
        """The lead's values, in place."""
        dist.broadcast(x, 0)
        return x

    def side_by_side(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """[R, n] of every member to [R, columns], the first of all their columns in order."""
        rows, each = part.shape
        found = part.new_empty((self.size * rows, each))
        self._gather(found, part.contiguous())
        together = found.view(self.size, rows, each).transpose(0, 1)
        return together.reshape(rows, self.size * each)[:, :columns].contiguous()

    def least(self, value: int) -> int:
        """Of the members' values."""
        found = torch.tensor([value], dtype=torch.int64, device=self._device)
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return int(found)

    def agreed(self, fine: bool) -> bool:
        """Whether all members are."""
        return bool(self.least(int(fine)))

    def leave(self) -> None:
        """May be called twice. On CUDA the process has to end for it: NCCL waits for captured
        graphs."""
        if self._device.type != "cuda" and dist.is_initialized():
            dist.destroy_process_group()


def _gathering() -> Callable[[torch.Tensor, torch.Tensor], object]:
    """As this version of torch calls it."""
    newer = getattr(dist, "all_gather_single", None)
    return newer if newer is not None else dist.all_gather_into_tensor
