"""Product with 4-bit weights: ``y = x @ W + bias``, W dequantised on the way.

    x     [M, K]  fp16, bf16 or fp32; columns contiguous
    W     [K, N]  a W4Weight (see there for the layout of words, scales and zeros)
    bias  [N]
    y     [M, N]  of the type of x

W is the left operand of the tensor cores and comes from registers: a slab of words becomes a
slab of weights elementwise, and the dequantised weights never pass through shared memory.

A code becomes a float by writing it into the mantissa of a constant, two at a time: 128 + q in
bf16, 1024 + q in fp16. Both are exact, as is subtracting the zero from them. Then either the
weights are scaled (one rounding each), or (POST) the float32 sums over each group.

K is split into parts when there are few tiles; their float32 sums go to planes [parts, M, N],
which are added in order: by a second kernel, or by the op that takes y (``matmul_w4a16_parts``).
Above DEQUANTIZE_ABOVE rows W is dequantised once and the
product is dense.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from kernels import w4_hopper
from kernels.launch import cdiv, chained, compute_type, interpreting, require, use_triton
from kernels.tuning import DEQUANTIZE_ABOVE, Config, choose, matmul_splits
from kernels.w4_weight import TILE_N, W4Weight, dequantize_w4, pack_w4

__all__ = [
    "W4Weight",
    "dequantize_w4",
    "matmul_w4a16",
    "matmul_w4a16_parts",
    "matmul_w4a16_reference",
    "pack_w4",
]

DETERMINISTIC_ROWS = 64  # the tile whose way of cutting K serves every number of rows
_ROWS_AT_ONCE = 512  # in deterministic mode, whose planes would be large for a long prompt


def _planes(magic: str) -> tl.constexpr:
    """Assembly that extracts nibble j of two 16-bit words into two floats, for each j."""
    step = "{{ .reg .b32 t; shr.u32 t, $1, {}; lop3.b32 $0, t, 0x000F000F, {}, 0xEA; }}"
    return tl.constexpr(tuple(step.format(4 * j, magic) for j in range(4)))


_BF16 = _planes("0x43004300")
_FP16 = _planes("0x64006400")


@triton.jit
def _codes(  # type: ignore[no-untyped-def]
    words, zero, J: tl.constexpr, CT: tl.constexpr, ASM: tl.constexpr
):
    """Plane J of the words [BN, S], less the zeros [BN], exactly."""
    if not ASM:
        return ((words >> (4 * J)) & 0xF).to(CT) - zero.to(CT)[:, None]
    elif CT.is_bf16():
        q = tl.inline_asm_elementwise(_BF16[J], "=r,r", [words], tl.bfloat16, True, 2)
        return q - (zero.to(CT) + 128)[:, None]  # exact: at most 144 of 8 bits
    else:
        q = tl.inline_asm_elementwise(_FP16[J], "=r,r", [words], tl.float16, True, 2)
        return q - (zero.to(CT) + 1024)[:, None]


@triton.jit(do_not_specialize=["M"])
def _matmul_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    stride_x,
    stride_out,
    stride_group,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    S: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCKS: tl.constexpr,
    PER: tl.constexpr,
    PARTS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    TILE: tl.constexpr,
    POST: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ASM: tl.constexpr,
    CT: tl.constexpr,
):
    """BN columns by BM rows over PER blocks of K. SPAN slabs of a block share a group."""
    part = tl.program_id(2)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    s = tl.arange(0, S)
    live = (m < M)[None, :]
    tile = (n // TILE).to(tl.int64) * (BLOCKS * TILE * S) + n % TILE * S
    at_words = words_ptr + tile[:, None] + s[None, :]
    at_x = x_ptr + m.to(tl.int64)[None, :] * stride_x + s[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    zero = tl.full((BN,), 8.0, CT)
    for block in range(part * PER, tl.minimum(part * PER + PER, BLOCKS)):
        words = tl.load(at_words + block * (TILE * S), eviction_policy="evict_first")
        for j in tl.static_range(4):
            k = (block * 4 + j) * S
            if j % SPAN == 0:
                group = k // GROUP
                if BLOCKS * 4 * S > GROUPS * GROUP:  # padding past the last group
                    group = tl.minimum(group, GROUPS - 1)
                scale = tl.load(scales_ptr + group * stride_group + n)
                if HAS_ZEROS:
                    zero = tl.load(zeros_ptr + group * stride_group + n).to(CT)
            if K % (4 * S) == 0:
                x = tl.load(at_x + k, mask=live, other=0.0)
            else:
                x = tl.load(at_x + k, mask=live & (k + s < K)[:, None], other=0.0)
            w = _codes(words, zero, j, CT, ASM)
            if POST:
                if j % SPAN == 0:
                    total = tl.dot(w, x.to(CT), input_precision="ieee")
                else:
                    total = tl.dot(w, x.to(CT), total, input_precision="ieee")
                if j % SPAN == SPAN - 1:
                    acc += total * scale.to(tl.float32)[:, None]
            else:
                acc = tl.dot(w * scale.to(CT)[:, None], x.to(CT), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    to = out_ptr + (part * M + m).to(tl.int64)[None, :] * stride_out + n[:, None]
    tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=live & (n < N)[:, None])


@triton.jit(do_not_specialize=["M"])
def _sum_kernel(  # type: ignore[no-untyped-def]
    planes_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    stride_out,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(planes_ptr + (part * M + m) * N + n, mask=inside, other=0.0)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + m * stride_out + n, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _dequantize_kernel(  # type: ignore[no-untyped-def]
    words_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    N,
    stride_group,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    S: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """One stored tile into out [N, K], rounded once."""
    block = tl.program_id(0)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    s = tl.arange(0, S)
    tile = (tl.program_id(1).to(tl.int64) * BLOCKS + block) * (TILE * S)
    words = tl.load(words_ptr + tile + tl.arange(0, TILE)[:, None] * S + s[None, :])
    zero = tl.full((TILE,), 8.0, tl.float32)
    for j in tl.static_range(4):
        k = (block * 4 + j) * S
        group = tl.minimum(k // GROUP, GROUPS - 1) * stride_group
        scale = tl.load(scales_ptr + group + n).to(tl.float32)
        if HAS_ZEROS:
            zero = tl.load(zeros_ptr + group + n).to(tl.float32)
        w = (((words >> (4 * j)) & 0xF).to(tl.float32) - zero[:, None]) * scale[:, None]
        to = out_ptr + n.to(tl.int64)[:, None] * K + k + s[None, :]
        inside = (n < N)[:, None] & (k + s < K)[None, :]
        tl.store(to, w.to(out_ptr.dtype.element_ty), mask=inside)


def matmul_w4a16(
    x: torch.Tensor,
    w: W4Weight,
    *,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    deterministic: bool = False,
) -> torch.Tensor:
    """x @ W + bias, [M, N].

    Args:
        deterministic: a row is bit-equal whoever shares the batch. Slower for many rows.
    """
    M = x.shape[0]
    require(x.shape[1] == w.rows, f"x: {x.shape[1]} columns, the weight has {w.rows} rows")
    require(x.stride(1) == 1, "x: columns must be contiguous")
    if w.perm is not None:
        x = x.index_select(1, w.perm)
    if not use_triton(x) or (M > DEQUANTIZE_ABOVE and not deterministic):
        y = torch.nn.functional.linear(x, _dense(w, x.dtype), bias)
        return y if out is None else out.copy_(y)
    y = torch.empty((M, w.columns), dtype=x.dtype, device=x.device) if out is None else out
    if _on_hopper(x, w, deterministic):
        return _multiply_hopper(x, w, bias, y, deterministic)
    step = _ROWS_AT_ONCE if deterministic else max(M, 1)
    for first in range(0, M, step):
        rows = slice(first, min(first + step, M))
        _multiply(x[rows], w, bias, y[rows], deterministic)
    return y


def matmul_w4a16_parts(
    x: torch.Tensor,
    w: W4Weight,
    *,
    bias: torch.Tensor | None = None,
    deterministic: bool = False,
    chain: bool = True,
    signals: torch.Tensor | None = None,
) -> torch.Tensor:
    """x @ W + bias as addends [P, M, N]: float32, or of the type of x where P is 1.

    Args:
        chain: see ``launch.chained``.
        signals: what ``lora_shrink`` was given, launched before; see ``awaits_signals``.
    """
    if w.perm is None and _on_hopper(x, w, deterministic) and x.shape[0]:
        return _hopper_planes(x, w, bias, None, deterministic, chain=chain, signals=signals)
    return matmul_w4a16(x, w, bias=bias, deterministic=deterministic).unsqueeze(0)


def awaits_signals(x: torch.Tensor, w: W4Weight) -> bool:
    """Whether ``matmul_w4a16_parts`` is one kernel, which may await signals."""
    return w.perm is None and _on_hopper(x, w, False) and x.is_contiguous() and x.shape[0] > 0


def _on_hopper(x: torch.Tensor, w: W4Weight, deterministic: bool) -> bool:
    few = x.shape[0] <= DEQUANTIZE_ABOVE or deterministic
    return few and use_triton(x) and w.meta is not None and x.dtype == w.scales.dtype


def _hopper_planes(
    x: torch.Tensor,
    w: W4Weight,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    deterministic: bool,
    *,
    chain: bool = True,
    signals: torch.Tensor | None = None,
) -> torch.Tensor:
    """In deterministic mode one tile serves any number of rows, so that K is cut the same way."""
    assert w.meta is not None
    rows = DETERMINISTIC_ROWS if deterministic else x.shape[0]
    tile = w4_hopper.choose_tile(rows, w.columns, w.words.shape[1], x.device)
    return w4_hopper.w4_planes(
        x.contiguous(),
        w.words,
        w.meta,
        tile,
        group=w.group,
        bias=bias,
        out=out,
        chain=chain,
        signals=signals,
    )


def _multiply_hopper(
    x: torch.Tensor, w: W4Weight, bias: torch.Tensor | None, y: torch.Tensor, deterministic: bool
) -> torch.Tensor:
    if x.shape[0] == 0:
        return y
    planes = _hopper_planes(x, w, bias, y if y.is_contiguous() else None, deterministic)
    if planes.shape[0] > 1:
        return _sum_planes(planes, None, y)
    return y if planes.data_ptr() == y.data_ptr() else y.copy_(planes[0])


def _sum_planes(planes: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor) -> torch.Tensor:
    parts, M, N = planes.shape
    block = 1024
    _sum_kernel[(M, cdiv(N, block))](
        planes,
        planes if bias is None else bias,  # a pointer that is not read
        y,
        M,
        N,
        y.stride(0),
        PARTS=parts,
        BLOCK=block,
        HAS_BIAS=bias is not None,
        **chained(y),
    )
    return y


def _multiply(
    x: torch.Tensor, w: W4Weight, bias: torch.Tensor | None, y: torch.Tensor, deterministic: bool
) -> None:
    M, N = x.shape[0], w.columns
    tiles, blocks = w.words.shape[:2]
    op = "matmul_w4a16_deterministic" if deterministic else "matmul_w4a16"
    config = choose(op, M, x.device)
    columns = config.columns if tiles * TILE_N % config.columns == 0 else TILE_N
    programs = tiles * TILE_N // columns, cdiv(M, config.rows)
    busy = tiles if deterministic else programs[0] * programs[1]
    parts = matmul_splits(busy, blocks, x.device)
    single = parts == 1
    planes = y if single else torch.empty((parts, M, N), dtype=torch.float32, device=x.device)
    absent = w.scales  # a pointer that is not read
    _matmul_kernel[(*programs, parts)](
        x,
        w.words,
        w.scales,
        absent if w.zeros is None else w.zeros,
        absent if bias is None else bias,
        planes,
        M,
        N,
        x.stride(0),
        y.stride(0) if single else N,
        w.scales.stride(0),
        PER=cdiv(blocks, parts),
        PARTS=parts,
        HAS_BIAS=single and bias is not None,
        **_constants(w, x.dtype, config, columns),
    )
    if not single:
        _sum_planes(planes, bias, y)


def _constants(w: W4Weight, dtype: torch.dtype, config: Config, columns: int) -> dict[str, object]:
    return {
        "K": w.rows,
        "GROUP": w.group,
        "GROUPS": w.scales.shape[0],
        "S": w.slab,
        "SPAN": slabs_per_group(w.rows, w.group, w.slab),
        "BLOCKS": w.words.shape[1],
        "BM": config.rows,
        "BN": columns,
        "TILE": TILE_N,
        "POST": config.post_scale,
        "HAS_ZEROS": w.zeros is not None,
        "ASM": dtype != torch.float32 and not interpreting(),
        "CT": compute_type(dtype),
        "num_warps": config.warps,
        "num_stages": config.stages,
    }


def slabs_per_group(rows: int, group: int, slab: int) -> int:
    """How many slabs of a block are sure to lie in one group: 4, 2 or 1."""
    if group >= rows or group % (4 * slab) == 0:
        return 4
    return group // slab if 4 * slab % group == 0 else 1


def _dense(w: W4Weight, dtype: torch.dtype) -> torch.Tensor:
    """W transposed, [N, K], its rows in packed order."""
    if not use_triton(w.words):
        return dequantize_w4(replace(w, perm=None), dtype=dtype).t()
    dense = torch.empty((w.columns, w.rows), dtype=dtype, device=w.words.device)
    tiles, blocks = w.words.shape[:2]
    _dequantize_kernel[(blocks, tiles)](
        w.words,
        w.scales,
        w.scales if w.zeros is None else w.zeros,
        dense,
        w.columns,
        w.scales.stride(0),
        K=w.rows,
        GROUP=w.group,
        GROUPS=w.scales.shape[0],
        S=w.slab,
        BLOCKS=blocks,
        TILE=TILE_N,
        HAS_ZEROS=w.zeros is not None,
    )
    return dense


def matmul_w4a16_reference(
    x: torch.Tensor, w: W4Weight, *, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The definition in float64, rounded once."""
    y = x.double() @ dequantize_w4(w, dtype=torch.float64)
    return (y if bias is None else y + bias.double()).to(x.dtype)
