"""Counters in memory by which kernels in flight tell later ones how far they are.

A kernel of a chain waits for the whole of the kernel before it (``launch.chained``). Where it
needs less, or something from farther back, who makes that counts and who needs it waits for the
count. Programs that wait hold their place, so a count must come from kernels launched before: by
the time that a kernel begins, every program of those has its place already. Nothing is ever counted
down: whoever begins a pass sets all counters to zero.
"""

import triton
import triton.language as tl

# $1 is the counter's address, $2 what it has to reach.
_AWAITED = """{
    .reg .pred short;
    again:
    ld.acquire.gpu.global.u32 $0, [$1];
    setp.lt.u32 short, $0, $2;
    @short bra again;
}"""
AWAITED = tl.constexpr(_AWAITED)


@triton.jit
def await_count(counter_ptr, count):  # type: ignore[no-untyped-def]
    """What was written before the counter reached ``count`` can be read after this."""
    tl.inline_asm_elementwise(
        AWAITED, "=r,l,r", [counter_ptr.to(tl.int64), count], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def count_up(counter_ptr):  # type: ignore[no-untyped-def]
    """Tell whoever awaits the counter of all that this program has written."""
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")
