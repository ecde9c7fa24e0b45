"""The sum over the members of a team, each reading the others' memory: one launch on each device.

    planes  [P, T, N]  what a member adds, as in ``planes``; perhaps one addend more, [T, N]
    out     [T, N]     the sum, the same bits on every member

Each member rounds its addends' sum to the type of ``out``, writes it where the others can read it,
raises its flag in their memory, waits for theirs, and adds up what all have written, in the order
of members and in float32. Where it writes changes from launch to launch, so that what others still
read of the one before stays: by the next flag they have read it.

Every member launches the same sums in the same order, one at a time on each device. All programs of
a launch must run at once, which 64 do anywhere; each meets the program of its number elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import require
from kernels.planes import total

PROGRAMS = 64
BLOCK = 2048  # elements at a time


@dataclass(frozen=True, slots=True)
class Peers:
    """Memory of all members as one of them reaches it, on its device."""

    member: int
    buffers: torch.Tensor  # int64 [members]: address of two buffers of ``room`` bytes each
    flags: torch.Tensor  # int64 [members]: address of int64 [members, PROGRAMS], zero at first
    launched: torch.Tensor  # int64 [PROGRAMS]: launches so far
    room: int  # bytes, a multiple of 16

    @property
    def members(self) -> int:
        return self.buffers.numel()


@triton.jit
def _peer_sum_kernel(  # type: ignore[no-untyped-def]
    planes_ptr,
    addend_ptr,
    out_ptr,
    buffers_ptr,
    flags_ptr,
    launched_ptr,
    size,
    member,
    PARTS: tl.constexpr,
    ADDEND: tl.constexpr,
    MEMBERS: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    launch = tl.load(launched_ptr + program) + 1
    shift = (launch % 2) * ROOM
    own = tl.multiple_of(tl.load(buffers_ptr + member).to(out_ptr.dtype), 16)
    for first in range(program * BLOCK, size, programs * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < size
        x = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(PARTS):
            from_part = planes_ptr + tl.cast(size, tl.int64) * part
            x += tl.load(from_part + at, mask=inside, other=0.0).to(tl.float32)
        if ADDEND:
            x += tl.load(addend_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(own + shift + at, x.to(out_ptr.dtype.element_ty), mask=inside)
    tl.debug_barrier()
    for other in tl.static_range(MEMBERS):
        if other != member:
            theirs = tl.load(flags_ptr + other).to(tl.pointer_type(tl.int64))
            flag = theirs + member * programs + program
            tl.atomic_xchg(flag, launch, sem="release", scope="sys")
    mine = tl.load(flags_ptr + member).to(tl.pointer_type(tl.int64))
    for other in tl.static_range(MEMBERS):
        if other != member:
            flag = mine + other * programs + program
            seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
            while seen < launch:
                seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    tl.debug_barrier()
    for first in range(program * BLOCK, size, programs * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < size
        x = tl.zeros((BLOCK,), tl.float32)
        for other in tl.static_range(MEMBERS):
            buffer = tl.multiple_of(tl.load(buffers_ptr + other).to(out_ptr.dtype), 16)
            x += tl.load(buffer + shift + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(launched_ptr + program, launch)


def peer_sum(
    planes: torch.Tensor, addend: torch.Tensor | None, peers: Peers, dtype: torch.dtype
) -> torch.Tensor:
    """[T, N] of ``dtype``, in new memory. Kernels alone can do this: there is no torch path."""
    planes = (planes if planes.dim() == 3 else planes.unsqueeze(0)).contiguous()
    out = torch.empty(planes.shape[1:], dtype=dtype, device=planes.device)
    size = out.numel()
    require(size * dtype.itemsize <= peers.room, f"planes: {size} elements exceed the buffers")
    _peer_sum_kernel[(PROGRAMS,)](
        planes,
        planes if addend is None else addend.contiguous(),  # a pointer that may not be read
        out,
        peers.buffers,
        peers.flags,
        peers.launched,
        size,
        peers.member,
        PARTS=planes.shape[0],
        ADDEND=addend is not None,
        MEMBERS=peers.members,
        ROOM=peers.room // dtype.itemsize,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return out


def peer_sum_reference(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor | None]], dtype: torch.dtype
) -> torch.Tensor:
    """What all members get of what each adds."""
    return sum(total(*part).to(dtype).float() for part in parts).to(dtype)  # type: ignore[union-attr]
