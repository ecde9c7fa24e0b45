"""The 4-bit product on Hopper: ``planes[s] = x[:, part s of K] @ W[part s of K, :]``.

    x        [M, K]   fp16 or bf16, contiguous, K a multiple of 256
    words    [Np / 128, K / 256, 128, 64] int16, the tiles of ``matmul_w4a16.W4Weight`` (S = 64)
    meta     [G, Np]  int32: scale in the low half, biased zero in the high half (see ``pack_meta``)
    planes   [splits, M, Np]  float32, or y [M, Np] in the type of x when splits == 1

One program owns BN columns of W, BM rows of x and one part of K. Its warps have roles: one warp
copies weight tiles to a ring in shared memory, one copies slices of x, and each warpgroup of four
warps dequantises its 64 or 128 columns in registers and feeds them to the tensor cores as the
left operand, so that dequantised weights never pass through shared memory. The rings are guarded
by full and empty barriers; scales are loaded a block ahead. Sixteen rows are the smallest tile the
tensor cores take on this side, so one row costs what sixteen do.

A stage of words is freed after the first product that used them, not after the load that read
them: the load may still be under way when the barrier is passed, and the copy that refills the
stage does not queue behind it.

Two blocks of 64 columns per group and 128 rows gave wrong sums now and then before that was so;
the pair is not offered until it has been tried again.

Splitting K gives a small problem enough programs; the planes are summed by whoever reads them, in
a fixed order, so results do not depend on timing. A bias is part of the first plane.

The kernel is one of a chain (``launch.chained``): weights and scales are on their way before the
kernel that computes x has ended, and only the copies of x wait for it.

A 4-bit code becomes a float by writing it in the mantissa of a constant: 1024 + q in fp16
(0x6400), 128 + q in bf16 (0x4300), both exact; subtracting the biased zero is exact as well.
"""

from dataclasses import dataclass, replace

import torch
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import chained, multiprocessors, require
from kernels.signals import AWAITED

TILE = 128  # columns of a stored tile
BLOCK_K = 256  # rows of W in a stored tile
SLAB = 64  # rows of one nibble plane
BIAS = {torch.float16: 1024, torch.bfloat16: 128}
LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How one launch cuts the work. Constants of the compiled kernel but for ``splits``."""

    rows: int  # BM: rows of x a program takes; 16, 32, 64, 128 or 256
    groups: int  # warpgroups that multiply: 1, 2 or 4
    blocks: int  # blocks of 64 columns per warpgroup: 1 or 2
    weight_stages: int
    x_stages: int  # slices of 64 columns of x in flight
    registers: int = 0  # of worker warpgroups; 0 when there are none
    cap: int = 0  # registers of every warp, 0: the compiler's choice
    splits: int = 1  # parts of K, all but the last of equal length

    @property
    def columns(self) -> int:
        """BN: columns of W a program owns."""
        return 64 * self.groups * self.blocks


def _planes(magic: str, shifts: tuple[int, ...], masks: tuple[str, ...]) -> gl.constexpr:
    """Assembly that turns nibble j of two 16-bit words into two floats, for each j."""
    step = "{{ .reg .b32 t; shr.u32 t, $1, {}; lop3.b32 $0, t, {}, {}, 0xEA; }}"
    return gl.constexpr(tuple(step.format(s, m, magic) for s, m in zip(shifts, masks, strict=True)))


_LOW, _HIGH = "0x000F000F", "0x00F000F0"
_BF16 = _planes("0x43004300", (0, 4, 8, 12), (_LOW,) * 4)  # 128 + q
_FP16 = _planes("0x64006400", (0, 0, 8, 8), (_LOW, _HIGH) * 2)  # 1024 + q, 1024 + 16 q, ...


@gluon.jit
def _wait():  # type: ignore[no-untyped-def]
    """For the end of the kernel before, and for all it wrote."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _release():  # type: ignore[no-untyped-def]
    """The kernel after this one may begin."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _await_x(signals):  # type: ignore[no-untyped-def]
    """What was written before the first signal came can be copied after this."""
    gl.inline_asm_elementwise(
        AWAITED, "=r,l,r", [signals.to(gl.int64), 1], dtype=gl.int32, is_pure=False, pack=1
    )
    gl.inline_asm_elementwise(
        "fence.proxy.async.global; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _dequantise(words, j: gl.constexpr, meta, DTYPE: gl.constexpr):  # type: ignore[no-untyped-def]
    """Slab j of a word tile [64, 64] times its scales; meta [64] holds scale and biased zero."""
    scale = gl.expand_dims((meta & 0xFFFF).to(gl.int16).to(DTYPE, bitcast=True), 1)
    zero = gl.expand_dims((meta >> 16).to(gl.int16).to(DTYPE, bitcast=True), 1)
    if DTYPE == gl.bfloat16:  # noqa: SIM300
        q = gl.inline_asm_elementwise(
            _BF16[j], "=r,r", [words], dtype=gl.bfloat16, is_pure=True, pack=2
        )
        return (q - zero) * scale
    else:
        q = gl.inline_asm_elementwise(
            _FP16[j], "=r,r", [words], dtype=gl.float16, is_pure=True, pack=2
        )
        if j % 2 == 0:
            return (q - zero) * scale
        else:  # (1024 + 16 q) / 16 = 64 + q: the zero is biased by 64 instead of 1024
            return (q * 0.0625 - (zero.to(gl.float32) - 960.0).to(DTYPE)) * scale


@gluon.jit
def _copy_weights(  # type: ignore[no-untyped-def]
    w_desc, ring, full, empty, first, stride, BLOCKS,
    TILES: gl.constexpr, STAGES: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    """Producer: stage s of the ring gets TILES neighbouring word tiles of one block of K.

    The next kernel may begin when all is asked for: earlier, it would take bandwidth from this one.
    """
    for i in range(BLOCKS):
        s = i % STAGES
        mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(s), TILES * 128 * 128)
        for t in gl.static_range(TILES):
            row = first + t * stride + i * 128
            tma.async_copy_global_to_shared(
                w_desc, [row, 0], full.index(s), ring.index(s * TILES + t)
            )
    if CHAINED:
        _release()


@gluon.jit
def _copy_x(  # type: ignore[no-untyped-def]
    x_desc, ring, full, empty, m0, k0, BLOCKS, signals,
    BM: gl.constexpr, STAGES: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    """Producer: one [BM, 64] slice of x per stage; rows past M arrive as zeros.

    With signals the first of them says when x is there, and what comes next may begin at once.
    """
    if signals is not None:
        if CHAINED:
            _release()
        _await_x(signals)
    elif CHAINED:
        _wait()
    for t in range(BLOCKS * 4):
        s = t % STAGES
        mbarrier.wait(empty.index(s), ((t // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(s), BM * 128)
        tma.async_copy_global_to_shared(x_desc, [m0, k0 + t * 64], full.index(s), ring.index(s))


@gluon.jit
def _store(acc, out, n0, m0, M, N, BM: gl.constexpr):  # type: ignore[no-untyped-def]
    """acc [64, BM] is a transposed tile of out [M, N]."""
    value = acc.to(out.dtype.element_ty)
    if BM >= 128:  # wide tiles gain from whole lines: a change of layout first
        if out.dtype.element_ty == gl.float32:
            layout: gl.constexpr = gl.BlockedLayout([4, 1], [16, 2], [1, 4], [0, 1])
        else:
            layout: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])  # type: ignore[no-redef]
        value = gl.convert_layout(value, layout)
        n = n0 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
        m = m0 + gl.arange(0, BM, layout=gl.SliceLayout(0, layout))
        gl.store(out + m[None, :].to(gl.int64) * N + n[:, None], value, mask=m[None, :] < M)
    else:
        n = n0 + gl.arange(0, 64, layout=gl.SliceLayout(1, acc.type.layout))
        m = m0 + gl.arange(0, BM, layout=gl.SliceLayout(0, acc.type.layout))
        gl.store(out + m[None, :].to(gl.int64) * N + n[:, None], value, mask=m[None, :] < M)


@gluon.jit
def _consume(  # type: ignore[no-untyped-def]
    rings, meta, bias, out, where,
    WHO: gl.constexpr, BM: gl.constexpr, NBLK: gl.constexpr, TILES: gl.constexpr,
    WST: gl.constexpr, XST: gl.constexpr, SPAN: gl.constexpr, HAS_BIAS: gl.constexpr,
    WAITS: gl.constexpr, JOINS: gl.constexpr,
):  # fmt: skip
    """One warpgroup: dequantise NBLK blocks of 64 columns and multiply, block after block of K.

    SPAN is how many slabs of 64 rows share a scale: 1, 2, 4, or 0 when all of K does. The bias
    is added to the first part of K.
    """
    w_ring, x_ring, w_full, w_empty, x_full, x_empty = rings
    part, group0, n0, m0, M, N, BLOCKS = where
    DTYPE: gl.constexpr = x_ring.dtype
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BM, 16]
    )
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=mma, k_width=2)
    COLUMN: gl.constexpr = WHO * NBLK * 64  # first column of this group within the program's
    TILE_OF: gl.constexpr = COLUMN // 128
    ROW: gl.constexpr = COLUMN % 128
    STEP: gl.constexpr = 4 // SPAN if SPAN else 0  # rows of meta per block of K
    column = n0 + COLUMN + gl.arange(0, 64, layout=gl.SliceLayout(1, left))
    pointer = meta + group0.to(gl.int64) * N + column
    acc0 = gl.zeros((64, BM), gl.float32, layout=mma)
    acc1 = acc0
    if HAS_BIAS:
        own = bias + n0 + COLUMN + gl.arange(0, 64, layout=gl.SliceLayout(1, mma))
        acc0 += gl.expand_dims(gl.load(own, mask=part == 0, other=0.0).to(gl.float32), 1)
        if NBLK == 2:
            acc1 += gl.expand_dims(gl.load(own + 64, mask=part == 0, other=0.0).to(gl.float32), 1)
    a0 = gl.load(pointer)
    b0 = a0
    if NBLK == 2:
        b0 = gl.load(pointer + 64)
    a1, a2, a3, b1, b2, b3 = a0, a0, a0, b0, b0, b0
    if STEP >= 2:
        a1 = gl.load(pointer + N)
        if NBLK == 2:
            b1 = gl.load(pointer + N + 64)
    if STEP == 4:
        a2 = gl.load(pointer + 2 * N)
        a3 = gl.load(pointer + 3 * N)
        if NBLK == 2:
            b2 = gl.load(pointer + 2 * N + 64)
            b3 = gl.load(pointer + 3 * N + 64)
    for i in range(BLOCKS):
        c0, c1, c2, c3, d0, d1, d2, d3 = a0, a1, a2, a3, b0, b1, b2, b3
        if STEP > 0:  # the next block's scales, a whole block ahead of their use
            pointer += gl.where(i < BLOCKS - 1, STEP * N, 0)
            a0 = gl.load(pointer)
            if NBLK == 2:
                b0 = gl.load(pointer + 64)
            if STEP >= 2:
                a1 = gl.load(pointer + N)
                if NBLK == 2:
                    b1 = gl.load(pointer + N + 64)
            if STEP == 4:
                a2 = gl.load(pointer + 2 * N)
                a3 = gl.load(pointer + 3 * N)
                if NBLK == 2:
                    b2 = gl.load(pointer + 2 * N + 64)
                    b3 = gl.load(pointer + 3 * N + 64)
        s = i % WST
        mbarrier.wait(w_full.index(s), (i // WST) & 1)
        tile = w_ring.index(s * TILES + TILE_OF)
        w0 = tile.slice(ROW, 64, 0).load(left)
        w1 = w0
        if NBLK == 2:
            w1 = tile.slice(ROW + 64, 64, 0).load(left)
        for j in gl.static_range(4):
            t = i * 4 + j
            if STEP == 4:
                p = c0 if j == 0 else (c1 if j == 1 else (c2 if j == 2 else c3))
                q = d0 if j == 0 else (d1 if j == 1 else (d2 if j == 2 else d3))
            elif STEP == 2:
                p = c0 if j < 2 else c1
                q = d0 if j < 2 else d1
            else:
                p = c0
                q = d0
            # both left operands are ready before either product is issued, and nothing is written
            # until both are done: registers must not change under a product in flight
            u0 = _dequantise(w0, j, p, DTYPE)
            u1 = u0
            if NBLK == 2:
                u1 = _dequantise(w1, j, q, DTYPE)
            xs = t % XST
            mbarrier.wait(x_full.index(xs), (t // XST) & 1)
            right = x_ring.index(xs).permute((1, 0))
            acc0 = warpgroup_mma(u0, right, acc0, is_async=True)
            if NBLK == 2:
                acc1 = warpgroup_mma(u1, right, acc1, is_async=True)
                acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
            else:
                acc0 = warpgroup_mma_wait(0, deps=[acc0])
            mbarrier.arrive(x_empty.index(xs), count=1)
            if j == 0:  # the words are in registers for sure once a product has used all of them
                mbarrier.arrive(w_empty.index(s), count=1)
    if WAITS:
        _wait()
    _store(acc0, out, n0 + COLUMN, m0, M, N, BM)
    if NBLK == 2:
        _store(acc1, out, n0 + COLUMN + 64, m0, M, N, BM)
    if JOINS and WHO == 0:
        _wait()


@gluon.jit(do_not_specialize=["M", "K_BLOCKS", "PART"])
def _w4_kernel(  # type: ignore[no-untyped-def]
    x_desc, w_desc, meta, bias, out, signals, M, N, K_BLOCKS, PART,
    BM: gl.constexpr, GROUPS: gl.constexpr, NBLK: gl.constexpr, WST: gl.constexpr,
    XST: gl.constexpr, SPAN: gl.constexpr, REGISTERS: gl.constexpr,
    HAS_BIAS: gl.constexpr, CHAINED: gl.constexpr,
):  # fmt: skip
    TILES: gl.constexpr = GROUPS * NBLK // 2  # word tiles side by side
    BN: gl.constexpr = GROUPS * NBLK * 64
    WAITS: gl.constexpr = CHAINED and signals is None
    JOINS: gl.constexpr = CHAINED and signals is not None
    pid_m = gl.program_id(0)
    pid_n = gl.program_id(1)
    part = gl.program_id(2)
    w_ring = gl.allocate_shared_memory(gl.int16, [WST * TILES, 128, 64], w_desc.layout)
    x_ring = gl.allocate_shared_memory(x_desc.dtype, [XST, BM, 64], x_desc.layout)
    w_full = gl.allocate_shared_memory(gl.int64, [WST, 1], mbarrier.MBarrierLayout())
    w_empty = gl.allocate_shared_memory(gl.int64, [WST, 1], mbarrier.MBarrierLayout())
    x_full = gl.allocate_shared_memory(gl.int64, [XST, 1], mbarrier.MBarrierLayout())
    x_empty = gl.allocate_shared_memory(gl.int64, [XST, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(WST):
        mbarrier.init(w_full.index(i), count=1)
        mbarrier.init(w_empty.index(i), count=GROUPS)
    for i in gl.static_range(XST):
        mbarrier.init(x_full.index(i), count=1)
        mbarrier.init(x_empty.index(i), count=GROUPS)
    fence_async_shared()
    m0 = pid_m * BM
    n0 = pid_n * BN
    block0 = part * PART
    BLOCKS = gl.minimum(PART, K_BLOCKS - block0)
    k0 = block0 * 256
    first = (pid_n * TILES * K_BLOCKS + block0) * 128
    group0 = block0 * 0
    if SPAN > 0:
        group0 = block0 * (4 // SPAN)
    plane = out + part.to(gl.int64) * M * N
    rings = (w_ring, x_ring, w_full, w_empty, x_full, x_empty)
    where = (part, group0, n0, m0, M, N, BLOCKS)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_consume, (rings, meta, bias, plane, where, 0, BM, NBLK, TILES, WST, XST, SPAN,
                            HAS_BIAS, WAITS, JOINS)),
                (_copy_weights, (w_desc, w_ring, w_full, w_empty, first, K_BLOCKS * 128, BLOCKS,
                                 TILES, WST, CHAINED)),
                (_copy_x, (x_desc, x_ring, x_full, x_empty, m0, k0, BLOCKS, signals, BM, XST,
                           CHAINED)),
            ],
            [1, 1],
            [24, 24],
        )  # fmt: skip
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (rings, meta, bias, plane, where, 0, BM, NBLK, TILES, WST, XST, SPAN,
                            HAS_BIAS, WAITS, JOINS)),
                (_consume, (rings, meta, bias, plane, where, 1, BM, NBLK, TILES, WST, XST, SPAN,
                            HAS_BIAS, WAITS, JOINS)),
                (_copy_weights, (w_desc, w_ring, w_full, w_empty, first, K_BLOCKS * 128, BLOCKS,
                                 TILES, WST, CHAINED)),
                (_copy_x, (x_desc, x_ring, x_full, x_empty, m0, k0, BLOCKS, signals, BM, XST,
                           CHAINED)),
            ],
            [4, 1, 1],
            [REGISTERS, 24, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (rings, meta, bias, plane, where, 0, BM, NBLK, TILES, WST, XST, SPAN,
                            HAS_BIAS, WAITS, JOINS)),
                (_consume, (rings, meta, bias, plane, where, 1, BM, NBLK, TILES, WST, XST, SPAN,
                            HAS_BIAS, WAITS, JOINS)),
                (_consume, (rings, meta, bias, plane, where, 2, BM, NBLK, TILES, WST, XST, SPAN,
                            HAS_BIAS, WAITS, JOINS)),
                (_consume, (rings, meta, bias, plane, where, 3, BM, NBLK, TILES, WST, XST, SPAN,
                            HAS_BIAS, WAITS, JOINS)),
                (_copy_weights, (w_desc, w_ring, w_full, w_empty, first, K_BLOCKS * 128, BLOCKS,
                                 TILES, WST, CHAINED)),
                (_copy_x, (x_desc, x_ring, x_full, x_empty, m0, k0, BLOCKS, signals, BM, XST,
                           CHAINED)),
            ],
            [4, 4, 4, 1, 1],
            [REGISTERS, REGISTERS, REGISTERS, 24, 24],
        )  # fmt: skip


def choose_tile(rows: int, columns: int, blocks: int, device: torch.device) -> Tile:
    """The tile for M rows, Np columns and so many blocks of K.

    One tile shape per bucket of rows was the fastest, or within 2 % of it, on every shape measured
    (NOTES.md); K is split so that the programs end soonest.
    """
    bucket, tile = next((b, t) for b, t in _TILES if rows <= b or b == _TILES[-1][0])
    programs = columns // tile.columns * -(-rows // bucket)
    # As many as run at once: a multiprocessor has registers for three, two or one.
    slots = multiprocessors(device) * (3 if bucket <= 16 else 2 if bucket <= 64 else 1)

    def rounds(splits: int) -> int:
        """Blocks that a slot multiplies one after the other, each program's start included."""
        return -(-programs * splits // slots) * (-(-blocks // splits) + _START)

    most = 16 if bucket <= 16 else slots // programs  # taller planes cost more than a round saves
    splits = min(range(1, max(1, min(blocks // 2, most, 16)) + 1), key=rounds)
    part = -(-blocks // splits)
    return replace(tile, splits=-(-blocks // part))


_START = 2  # blocks that could be multiplied while a program starts and stores
_TILES = (
    (16, Tile(rows=16, groups=1, blocks=2, weight_stages=2, x_stages=4, cap=80)),
    (32, Tile(rows=32, groups=1, blocks=2, weight_stages=3, x_stages=4, cap=128)),
    (64, Tile(rows=64, groups=2, blocks=1, weight_stages=3, x_stages=4, registers=104, cap=80)),
    (128, Tile(rows=128, groups=2, blocks=1, weight_stages=4, x_stages=8, registers=232)),
    (256, Tile(rows=256, groups=2, blocks=1, weight_stages=3, x_stages=4, registers=232)),
)


def pack_meta(scales: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
    """Scale and biased zero of every group and column in one word.

    Args:
        scales: [G, Np] fp16 or bf16.
        zeros: [G, Np] of any type holding 0 .. 16, or None when all are 8.

    Returns:
        [G, Np] int32.
    """
    require(scales.dtype in BIAS, f"scales: {scales.dtype} is neither float16 nor bfloat16")
    point = torch.full_like(scales, 8) if zeros is None else zeros.to(scales.dtype)
    biased = (point.float() + BIAS[scales.dtype]).to(scales.dtype)
    low = scales.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    high = biased.contiguous().view(torch.int16).to(torch.int32) << 16
    return low | high


def takes(rows: int, group: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a matrix of so many rows, grouped so, can be multiplied here on this device."""
    fits = rows % BLOCK_K == 0 and span_of(group, rows) >= 0 and dtype in BIAS
    return fits and device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def span_of(group: int, rows: int) -> int:
    """How many slabs share a scale, or -1 when this kernel does not take the group size."""
    if group >= rows:
        return 0
    return group // SLAB if group in (64, 128, 256) else -1


def w4_planes(
    x: torch.Tensor,
    words: torch.Tensor,
    meta: torch.Tensor,
    tile: Tile,
    *,
    group: int,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    chain: bool = True,
    signals: torch.Tensor | None = None,
) -> torch.Tensor:
    """Launch the kernel; see the module docstring for shapes.

    Args:
        bias: [Np], added to the first plane.
        out: contiguous memory for the result when ``tile.splits`` is 1.
        chain: see ``launch.chained``.
        signals: [1 or more] int32: x may be read once the first is not zero.

    Returns:
        [splits, M, Np] float32, or [1, M, Np] in the type of x when ``tile.splits`` is 1.
    """
    M, K = x.shape
    tiles, k_blocks = words.shape[:2]
    N = tiles * TILE
    require(k_blocks * BLOCK_K == K, f"x: {K} columns, the weight has {k_blocks * BLOCK_K} rows")
    require(tile.rows < 128 or tile.blocks == 1, "tile: two blocks with 128 rows are not safe")
    require(N % tile.columns == 0, f"tile: {tile.columns} columns do not divide {N}")
    part = -(-k_blocks // tile.splits)
    require(part * (tile.splits - 1) < k_blocks, f"tile: {tile.splits} parts of {k_blocks} blocks")
    if out is not None and tile.splits == 1:
        planes = out.view(1, M, N)
    else:
        dtype = x.dtype if tile.splits == 1 else torch.float32
        planes = torch.empty((tile.splits, M, N), dtype=dtype, device=x.device)
    x_desc = TensorDescriptor.from_tensor(x, [tile.rows, SLAB], LAYOUT)
    w_desc = TensorDescriptor.from_tensor(words.view(-1, SLAB), [TILE, SLAB], LAYOUT)
    grid = (-(-M // tile.rows), N // tile.columns, tile.splits)
    options = {"maxnreg": tile.cap} if tile.cap else {}
    _w4_kernel[grid](
        x_desc, w_desc, meta, meta if bias is None else bias, planes, signals, M, N, k_blocks, part,
        BM=tile.rows, GROUPS=tile.groups, NBLK=tile.blocks, WST=tile.weight_stages,
        XST=tile.x_stages, SPAN=span_of(group, K), REGISTERS=tile.registers,
        HAS_BIAS=bias is not None, num_warps=4, **options,
        **chained(x, chain=chain),
    )  # fmt: skip
    return planes
