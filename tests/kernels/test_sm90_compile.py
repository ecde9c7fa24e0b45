"""Every kernel compiles for Hopper in the shapes of an 8B model, within its budget.

Needs no GPU, but kernels that are not interpreted: skipped under TRITON_INTERPRET=1.
"""

import re

import pytest
import triton.language as tl

from kernels.launch import interpreting
from tests.kernels.compiled import compile_kernel

pytestmark = pytest.mark.skipif(interpreting(), reason="interpreted kernels cannot be compiled")

SHARED_LIMIT = 227 * 1024  # bytes a program may use on Hopper
TYPES = {"bf16": tl.bfloat16, "fp16": tl.float16}
WIDE = {"magnitudes_ptr": None, "stride_magnitudes": None}  # keys and values as computed
NARROW = {"kv_ptr": "*u8", "magnitudes_ptr": "*fp32", "stride_magnitudes": "i32"}
types = pytest.mark.parametrize("dtype", TYPES)
bf16 = pytest.mark.parametrize("dtype", ["bf16"])  # where fp16 takes the same path


CHAIN = ("griddepcontrol.launch_dependents", "griddepcontrol.wait")


def check(kernel, *, registers, spilled=0):
    assert kernel.spilled <= spilled
    assert kernel.registers <= registers
    assert kernel.shared <= SHARED_LIMIT


def assert_waits_before_all_but(kernel, *, loads):
    """A chained kernel reads nothing before it waits, but for so many loads of constants."""
    before, _, after = kernel.ptx.partition(CHAIN[1])
    assert CHAIN[0] in before
    assert "ld.global" in after
    assert len(set(re.findall(r"ld\.global\S* \{[^\[]*\[ *(%\w+)", before))) <= max(loads * 4, 0)
    assert "st.global" not in before


@bf16
@pytest.mark.parametrize(("residual", "parts"), [(False, 1), (True, 1), (True, 8)])
def test_rms_norm(residual, parts, dtype):
    from kernels.rms_norm import _rms_norm_kernel

    signature = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "y_ptr"), f"*{dtype}")
    signature |= {"x_ptr": f"*{dtype if parts == 1 else 'fp32'}", "rows_ptr": "*i64", "eps": "fp32"}
    signature["addend_ptr"] = f"*{dtype}"
    strides = ("stride_part", "stride_x", "stride_residual", "stride_y")
    signature |= dict.fromkeys(strides, "i32")
    constants = {"H": 4096, "BLOCK": 4096, "PARTS": parts, "HAS_RESIDUAL": residual}
    constants |= {"HAS_ROWS": False, "ADDEND": residual, "CHAINED": True}
    kernel = compile_kernel(_rms_norm_kernel, signature, constants, warps=16, aligned=strides)
    check(kernel, registers=64)
    assert_waits_before_all_but(kernel, loads=1)  # the weight


@bf16
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("parts", [1, 4])
def test_qkv_heads(parts, norms, dtype):
    from kernels.qkv_heads import _qkv_heads_kernel

    signature = {"qkv_ptr": f"*{dtype if parts == 1 else 'fp32'}"}
    signature |= dict.fromkeys(("q_ptr", "kv_ptr", "addend_ptr"), f"*{dtype}") | {"eps": "fp32"}
    signature |= dict.fromkeys(("positions_ptr", "slots_ptr"), "*i64")
    signature |= dict.fromkeys(("cos_sin_ptr", "q_norm_ptr", "k_norm_ptr"), "*fp32")
    strides = ("stride_part", "stride_row", "stride_page", "stride_side", "stride_head")
    signature |= dict.fromkeys(strides, "i32")
    constants = {"QH": 32, "KVH": 8, "HALF": 64, "PS": 64, "PARTS": parts, "HAS_NORMS": norms}
    constants |= {"BLOCK_H": 8, "BLOCK_HALF": 64, "ADDEND": norms, "CHAINED": True}
    kernel = compile_kernel(_qkv_heads_kernel, signature, constants | WIDE, aligned=strides)
    check(kernel, registers=96)
    assert_waits_before_all_but(kernel, loads=0)
    if parts > 1 and not norms:
        kernel = compile_kernel(_qkv_heads_kernel, signature | NARROW, constants, aligned=strides)
        check(kernel, registers=96)
        assert_waits_before_all_but(kernel, loads=0)


@bf16
def test_rope(dtype):
    from kernels.rope import _rope_kernel

    signature = {"q_ptr": f"*{dtype}", "k_ptr": f"*{dtype}", "positions_ptr": "*i64"}
    strides = ("stride_qt", "stride_qh", "stride_kt", "stride_kh")
    signature |= {"cos_sin_ptr": "*fp32", **dict.fromkeys(strides, "i32")}
    constants = {"QH": 32, "KVH": 8, "HALF": 64, "BLOCK_HALF": 64, "BLOCK_H": 8}
    check(compile_kernel(_rope_kernel, signature, constants, aligned=strides), registers=64)


@bf16
@pytest.mark.parametrize("addend", [False, True])
def test_silu_mul(addend, dtype):
    from kernels.silu_mul import _silu_mul_kernel

    signature = dict.fromkeys(("x_ptr", "addend_ptr", "y_ptr"), f"*{dtype}")
    sizes = ("stride_part", "stride_x", "stride_y", "half")
    signature |= dict.fromkeys(sizes, "i32")
    constants = {"BLOCK": 1024, "PARTS": 1, "ADDEND": addend, "CHAINED": True}
    kernel = compile_kernel(_silu_mul_kernel, signature, constants, aligned=sizes)
    check(kernel, registers=64)
    assert_waits_before_all_but(kernel, loads=0)


@bf16
def test_kv_write(dtype):
    from kernels.kv_write import _kv_write_kernel

    strides = (
        "stride_kt",
        "stride_kh",
        "stride_vt",
        "stride_vh",
        "stride_page",
        "stride_side",
        "stride_head",
    )
    signature = dict.fromkeys(("k_ptr", "v_ptr", "kv_ptr"), f"*{dtype}")
    signature |= {"slots_ptr": "*i64", **dict.fromkeys(strides, "i32")}
    shape = {"KVH": 8, "PS": 64, "D": 128, "BLOCK_H": 8, "BLOCK_D": 128}
    kernel = compile_kernel(_kv_write_kernel, signature, shape | WIDE, aligned=strides)
    check(kernel, registers=64)
    kernel = compile_kernel(_kv_write_kernel, signature | NARROW, shape, aligned=strides)
    check(kernel, registers=96)


ATTENTION_STRIDES = ("stride_qt", "stride_qh", "stride_page", "stride_side", "stride_head")


def attention_signature(dtype, integers):
    pointers = dict.fromkeys(("q_ptr", "kv_ptr"), f"*{dtype}")
    integer = dict.fromkeys(integers, "*i32")
    strides = dict.fromkeys((*ATTENTION_STRIDES, "stride_table", "stride_ot", "stride_oh"), "i32")
    return pointers | integer | strides | {"scale_log2": "fp32"}


def parts_signature(dtype):
    pointers = {"out_ptr": f"*{dtype}", "parts_ptr": "*fp32", "lse_ptr": "*fp32"}
    return pointers | dict.fromkeys(("stride_part", "splits", "chunks"), "i32")


@bf16
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("splits", "span", "queries"), [(1, 0, 1), (8, 0, 1), (8, 8, 1), (8, 0, 5)]
)
def test_paged_decode(page, head_dim, splits, span, queries, dtype):
    from kernels.paged_decode import _combine_kernel, _decode_kernel

    signature = attention_signature(dtype, ("page_table_ptr", "context_lens_ptr", "rows_ptr"))
    part = dtype if splits == 1 else "fp32"
    signature |= {"out_ptr": f"*{part}", "lse_ptr": f"*{part}", "splits": "i32"}
    shape = {
        "D": head_dim,
        "WINDOW": 0,
        "SPAN": span,
        "BLOCK_N": 64,
        "CHAINED": True,
    }
    lengths = {"query_len_ptr": None} if queries == 1 else {}
    constants = shape | WIDE | lengths | {"G": 4, "Q": queries, "PS": page, "BLOCK_D": head_dim}
    constants["BLOCK_G"] = 16 if queries == 1 else 32
    signature |= {} if queries == 1 else {"query_len_ptr": "*i32"}
    constants["PARTED"] = splits > 1
    constants["CT"] = TYPES[dtype]
    kernel = compile_kernel(_decode_kernel, signature, constants, aligned=ATTENTION_STRIDES)
    check(kernel, registers=168)  # three programs per multiprocessor
    assert_waits_before_all_but(kernel, loads=0)
    assert any("HMMA" in text for text in kernel.main_loop)
    if splits > 1:
        signature = {"parts_ptr": "*fp32", "lse_ptr": "*fp32", "context_lens_ptr": "*i32"}
        signature |= {"rows_ptr": "*i32", "out_ptr": f"*{dtype}"}
        signature |= {"stride_ot": "i32", "stride_oh": "i32", "splits": "i32"}
        signature |= {} if queries == 1 else {"query_len_ptr": "*i32"}
        constants = shape | lengths | {"Q": queries, "BLOCK_D": head_dim, "BLOCK_S": 16}
        kernel = compile_kernel(_combine_kernel, signature, constants)
        check(kernel, registers=64)
        assert_waits_before_all_but(kernel, loads=0)


@bf16
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "warps", "stages"), [(16, 64, 4, 3), (64, 64, 4, 2), (128, 128, 8, 2)]
)
def test_ragged_prefill(page, head_dim, rows, columns, warps, stages, parted, dtype):
    from kernels.ragged_prefill import _prefill_kernel

    integers = ("page_table_ptr", "query_start_ptr", "query_len_ptr", "context_lens_ptr")
    signature = attention_signature(dtype, integers) | parts_signature(dtype)
    constants = {"G": 4, "D": head_dim, "PS": page, "WINDOW": 0, "CT": TYPES[dtype]} | WIDE
    constants |= {"PARTED": parted, "SPAN": 8}
    constants |= {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_D": head_dim}
    aligned = (*ATTENTION_STRIDES, "stride_ot", "stride_oh")
    kernel = compile_kernel(
        _prefill_kernel, signature, constants, warps=warps, stages=stages, aligned=aligned
    )
    check(kernel, registers=255, spilled=160 if columns == 128 else 8)  # outside the loop
    wanted = "HMMA" if rows == 16 else "HGMMA"
    assert any(wanted in text for text in kernel.main_loop)
    assert sum(bool(re.search(r"\b(LDL|STL)\b", text)) for text in kernel.main_loop) <= 1


@bf16
@pytest.mark.parametrize("head_dim", [64, 128])
def test_joining_the_parts_of_ragged_prefill(head_dim, dtype):
    from kernels.ragged_prefill import _combine_kernel

    integers = ("query_start_ptr", "query_len_ptr", "context_lens_ptr")
    signature = dict.fromkeys(integers, "*i32") | parts_signature(dtype)
    signature |= {"stride_ot": "i32", "stride_oh": "i32"}
    constants = {"G": 4, "D": head_dim, "WINDOW": 0, "SPAN": 8, "BLOCK_M": 128, "BLOCK_N": 64}
    constants |= {"BLOCK_D": head_dim, "ROWS": 16}
    aligned = ("stride_ot", "stride_oh")
    check(compile_kernel(_combine_kernel, signature, constants, aligned=aligned), registers=96)


@types
@pytest.mark.parametrize("splits", [1, 8])
def test_paged_decode_over_8_bits(splits, dtype):
    from kernels.paged_decode import _decode_kernel

    signature = attention_signature(dtype, ("page_table_ptr", "context_lens_ptr", "rows_ptr"))
    part = dtype if splits == 1 else "fp32"
    signature |= {"out_ptr": f"*{part}", "lse_ptr": f"*{part}", "splits": "i32"} | NARROW
    constants = {"D": 128, "WINDOW": 0, "SPAN": 0, "BLOCK_N": 64, "G": 4, "Q": 1}
    constants |= {
        "PS": 64,
        "query_len_ptr": None,
        "BLOCK_G": 16,
        "BLOCK_D": 128,
        "CHAINED": True,
        "PARTED": splits > 1,
        "CT": tl.float16,
    }
    kernel = compile_kernel(_decode_kernel, signature, constants, aligned=ATTENTION_STRIDES)
    check(kernel, registers=168)  # three programs per multiprocessor
    assert_waits_before_all_but(kernel, loads=0)
    assert any("HMMA" in text for text in kernel.main_loop)
    copies = [text for text in kernel.main_loop if "LDGSTS" in text]
    assert sum(".128" in text or ".64" in text for text in copies) >= 8  # a tile of keys, of values
    assert not any(re.search(r"\bLDG\b", text) for text in kernel.main_loop)  # magnitudes neither


@types
@pytest.mark.parametrize(("rows", "warps", "stages"), [(16, 4, 3), (64, 4, 2), (128, 8, 3)])
def test_ragged_prefill_over_8_bits(rows, warps, stages, dtype):
    from kernels.ragged_prefill import _prefill_kernel

    integers = ("page_table_ptr", "query_start_ptr", "query_len_ptr", "context_lens_ptr")
    signature = attention_signature(dtype, integers) | parts_signature(dtype) | NARROW
    constants = {"G": 4, "D": 128, "PS": 64, "WINDOW": 0, "CT": tl.float16}
    constants |= {"PARTED": False, "SPAN": 8}
    constants |= {"BLOCK_M": rows, "BLOCK_N": 64, "BLOCK_D": 128}
    aligned = (*ATTENTION_STRIDES, "stride_ot", "stride_oh")
    kernel = compile_kernel(
        _prefill_kernel, signature, constants, warps=warps, stages=stages, aligned=aligned
    )
    check(kernel, registers=255)
    wanted = "HMMA" if rows == 16 else "HGMMA"
    assert any(wanted in text for text in kernel.main_loop)


# rows of x, columns, warps, stages, scale after the sum, most instructions per code
TILES = {
    "16": (16, 128, 4, 3, True, 2.45),
    "32": (32, 128, 4, 3, False, 3.1),
    "64": (64, 256, 8, 2, False, 3.1),
    "128": (128, 256, 8, 2, False, 3.1),
    "32 deterministic": (32, 128, 4, 2, True, 3.1),
    "64 deterministic": (64, 128, 8, 2, True, 4.5),
}


@types
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_w4a16(dtype, tile, zeros):
    from kernels.matmul_w4a16 import _matmul_kernel

    rows, columns, warps, stages, post, limit = TILES[tile]
    signature = dict.fromkeys(("x_ptr", "scales_ptr", "zeros_ptr", "bias_ptr"), f"*{dtype}")
    sizes = ("N", "stride_x", "stride_out", "stride_group")
    signature |= {
        "words_ptr": "*i16",
        "out_ptr": "*fp32",
        "M": "i32",
        **dict.fromkeys(sizes, "i32"),
    }
    constants = {
        "K": 4096,
        "GROUP": 128,
        "GROUPS": 32,
        "S": 64,
        "SPAN": 2,
        "BLOCKS": 16,
        "PER": 8,
        "PARTS": 2,
        "BM": rows,
        "BN": columns,
        "TILE": 128,
        "POST": post,
        "HAS_ZEROS": zeros,
        "HAS_BIAS": False,
        "ASM": True,
        "CT": TYPES[dtype],
    }
    kernel = compile_kernel(
        _matmul_kernel, signature, constants, warps=warps, stages=stages, aligned=sizes
    )
    check(kernel, registers=255)
    assert kernel.register_wgmma
    codes_per_thread = 4 * 64 * columns / (32 * warps)
    assert len(kernel.main_loop) / codes_per_thread <= limit


@pytest.mark.parametrize(("slab", "group"), [(32, 32), (32, 64), (32, 128), (64, 64), (64, 4096)])
def test_matmul_w4a16_takes_every_group(slab, group):
    from kernels.matmul_w4a16 import _dequantize_kernel, _matmul_kernel, slabs_per_group

    pointers = ("x_ptr", "scales_ptr", "zeros_ptr", "bias_ptr", "out_ptr")
    signature = dict.fromkeys(pointers, "*bf16") | {"words_ptr": "*i16", "M": "i32"}
    sizes = ("N", "stride_x", "stride_out", "stride_group")
    layout = {"K": 576, "GROUP": group, "GROUPS": -(-576 // group), "S": slab, "TILE": 128}
    layout |= {"BLOCKS": -(-576 // (4 * slab)), "HAS_ZEROS": True}
    constants = layout | {"SPAN": slabs_per_group(576, group, slab), "PER": 2, "PARTS": 1}
    constants |= {"BM": 16, "BN": 128, "POST": True, "HAS_BIAS": True}
    constants |= {"ASM": True, "CT": tl.bfloat16}
    signature |= dict.fromkeys(sizes, "i32")
    check(compile_kernel(_matmul_kernel, signature, constants, aligned=sizes), registers=255)
    signature = {"words_ptr": "*i16", "scales_ptr": "*fp16", "zeros_ptr": "*fp16"}
    signature |= {"out_ptr": "*bf16", "N": "i32", "stride_group": "i32"}
    check(compile_kernel(_dequantize_kernel, signature, layout), registers=255)


# kind of codes, rows of x, columns, depth, warps, stages, most instructions per byte
BYTE_TILES = [
    ("u8", "bf16", (16, 64, 128, 4, 4), 4.7),
    ("u8", "fp16", (16, 64, 128, 4, 4), 3.4),
    ("i8", "bf16", (16, 64, 128, 4, 4), 6.8),
    ("u8", "bf16", (64, 128, 64, 8, 3), 6.4),
    ("i8", "fp16", (128, 128, 64, 8, 3), 11.0),
]


@pytest.mark.parametrize(("codes", "dtype", "tile", "most"), BYTE_TILES)
@pytest.mark.parametrize("group", [128, 4096])
def test_matmul_w8a16(codes, dtype, tile, most, group):
    from kernels.matmul_w8a16 import _matmul_kernel

    rows, columns, depth, warps, stages = tile
    signature = {"x_ptr": f"*{dtype}", "values_ptr": f"*{codes}", "scales_ptr": "*fp32"}
    signature |= {"out_ptr": "*fp32", "M": "i32", "N": "i32"} | dict.fromkeys(
        ("stride_x", "per"), "i32"
    )
    constants = {"zeros_ptr": None, "bias_ptr": None, "K": 4096, "GROUP": group}
    constants |= {"BM": rows, "BN": columns, "BK": depth, "CT": TYPES[dtype], "CHAINED": True}
    kernel = compile_kernel(
        _matmul_kernel, signature, constants, warps=warps, stages=stages, aligned=("stride_x", "N")
    )
    check(kernel, registers=168 if warps == 4 else 208)
    before, _, after = kernel.ptx.partition(CHAIN[1])
    assert "ld.global" not in before
    assert CHAIN[0] in after  # when all weights are asked for
    assert kernel.register_wgmma
    assert not kernel.hazards
    assert len(kernel.main_loop) * warps * 32 / (columns * depth) <= most


@bf16
def test_the_sum_of_planes(dtype):
    from kernels.matmul_w4a16 import _sum_kernel

    signature = {"planes_ptr": "*fp32", "bias_ptr": f"*{dtype}", "out_ptr": f"*{dtype}"}
    signature |= dict.fromkeys(("M", "N", "stride_out"), "i32")
    constants = {"PARTS": 16, "BLOCK": 1024, "HAS_BIAS": True, "CHAINED": True}
    kernel = compile_kernel(_sum_kernel, signature, constants)
    check(kernel, registers=128)
    assert_waits_before_all_but(kernel, loads=0)


PLAIN = {"magnitudes_ptr": None, "UNIT": 64, "ITEM": 1, "HEAD": 0, "LARGEST": 1.0}
CODED = {"UNIT": 128, "ITEM": 2, "LARGEST": 127.0}  # what an adapter in 8 bits takes


def in_codes(codes, dtype, head):
    """(types of pointers, constants) of a LoRA kernel over adapters of this kind."""
    if codes is None:
        return {"pool_ptr": f"*{dtype}"}, PLAIN
    return {"pool_ptr": f"*{codes}", "magnitudes_ptr": f"*{dtype}"}, CODED | {"HEAD": head}


def compiled_shrink(dtype, rows, depth, warps, stages, codes=None, *, chained=False):
    from kernels.lora_shrink import _shrink_kernel

    integers = ("start_ptr", "length_ptr", "adapter_ptr", "units_ptr", "ranks_ptr")
    pointers, layout = in_codes(codes, dtype, 1)
    signature = {"x_ptr": f"*{dtype}", "h_ptr": "*fp32"} | pointers
    sizes = ("stride_x", "K", "STRIDE_A", "TERM")
    numbers = ("T", "tiles", "SLICES", "RB", "TERMS_EACH", *sizes)
    signature |= dict.fromkeys(integers, "*i32") | dict.fromkeys(numbers, "i32")
    constants = {"BLOCK_T": rows, "BLOCK_R": 16, "BLOCK_K": depth, "CT": TYPES[dtype]} | layout
    constants |= {"CHAINED": chained} | ({} if chained else {"signals_ptr": None})
    signature |= {"signals_ptr": "*i32"} if chained else {}
    return compile_kernel(
        _shrink_kernel, signature, constants, warps=warps, stages=stages, aligned=sizes
    )


SHRINKS = [(16, 256, 4, 2), (16, 128, 2, 4), (64, 128, 4, 3)]  # rows, depth, warps, stages


@bf16
@pytest.mark.parametrize("tile", SHRINKS)
def test_lora_shrink(tile, dtype):
    kernel = compiled_shrink(dtype, *tile)
    check(kernel, registers=168)
    assert "cp.async.cg.shared.global" in kernel.ptx  # the adapter streams in 16-byte pieces


def steps(kernel):
    """What a chained kernel does in program order: wait, release, and touch memory."""
    found = re.findall(
        r"griddepcontrol\.\w+|ld\.acquire|ld\.global|atom\.global|cp\.async\.c|st\.global",
        kernel.ptx,
    )
    return [step.removeprefix("griddepcontrol.") for step in found]


def test_shrink_with_signals_asks_for_adapters_says_that_x_is_there_and_counts_at_its_end():
    kernel = compiled_shrink("fp16", *SHRINKS[1], chained=True)
    assert kernel.spilled == 0
    found = steps(kernel)
    assert found[0] == "launch_dependents"
    waited = found.index("wait")
    assert "ld.global" in found[1:waited]
    assert found.count("wait") == 1
    assert found[waited + 1] == "atom.global"
    assert found[-1] == "atom.global"
    assert found.count("atom.global") == 2
    assert "st.global" not in found[:waited]


def test_expand_with_signals_asks_for_b_awaits_h_and_waits_for_the_product_at_its_end():
    kernel = compiled_expand("fp16", EXPANDS[0], add=False, vectors=False, signals=True)
    assert kernel.spilled == 0
    found = steps(kernel)
    assert found[0] == "launch_dependents"
    assert found[-1] == "wait"
    assert found.count("wait") == 1
    awaited = found.index("ld.acquire")
    assert "ld.global" in found[:awaited]
    assert found.count("ld.acquire") == 1
    assert "st.global" not in found[:awaited]


CODES = [("u8", "fp16", 6.5), ("i8", "fp16", 8.0), ("i8", "bf16", 9.5)]


@pytest.mark.parametrize(("codes", "dtype", "most"), CODES)  # of instructions per code
def test_lora_shrink_of_8_bits(codes, dtype, most):
    rows, depth, warps, _ = SHRINKS[0]
    kernel = compiled_shrink(dtype, *SHRINKS[0], codes=codes)
    check(kernel, registers=96)
    assert "cp.async.cg.shared.global" in kernel.ptx  # 16 codes at a time
    assert len(kernel.main_loop) * warps * 32 / (rows * depth) <= most


def compiled_expand(dtype, tile, *, add, vectors, codes=None, signals=False):
    from kernels.lora_expand import _expand_kernel

    rows, columns, warps, planes, each = tile
    integers = ("start_ptr", "length_ptr", "adapter_ptr", "units_ptr", "ranks_ptr")
    integers += ("bias_units_ptr", "scale_units_ptr", "spans_ptr")
    pointers, layout = in_codes(codes, dtype, 2)
    signature = {"h_ptr": "*fp32", "y_ptr": f"*{dtype}"} | pointers
    numbers = ("T", "tiles", "stride_y", "BLOCKS", "SLICES", "R", "PROGRAMS")
    signature |= dict.fromkeys(integers, "*i32") | dict.fromkeys(numbers, "i32")
    constants = {"PLANES": planes, "CT": TYPES[dtype]} | layout
    constants |= {"ADD": add, "HAS_BIAS": vectors, "HAS_SCALE": vectors, "CHAINED": True}
    constants |= {} if signals else {"signals_ptr": None}
    signature |= {"signals_ptr": "*i32"} if signals else {}
    constants |= {"BLOCK_T": rows, "BLOCK_N": columns, "B_ROWS": 128}
    constants |= {"EACH": each, "PIECES": 1024 // columns // each, "BLOCK_R": 16, "ALIGN": 16}
    return compile_kernel(
        _expand_kernel, signature, constants, warps=warps, stages=1, aligned=("stride_y", "R")
    )


@pytest.mark.parametrize(("tile", "codes", "dtype"), [(0, "u8", "fp16"), (2, "i8", "fp16")])
def test_lora_expand_of_8_bits(tile, codes, dtype):
    kernel = compiled_expand(dtype, EXPANDS[tile], add=False, vectors=False, codes=codes)
    check(kernel, registers=168 if tile == 0 else 232)
    b = [line for line in kernel.ptx.splitlines() if "ld.global.L1::evict_first" in line]
    assert b
    assert all(".v2.b32" in line for line in b)  # 8 codes at a time


EXPANDS = [(16, 256, 4, 4, 4), (16, 256, 4, 28, 1), (64, 256, 8, 1, 1)]


@bf16
@pytest.mark.parametrize(("add", "vectors"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("tile", EXPANDS)  # rows, columns, warps, planes, tiles of a program
def test_lora_expand(tile, add, vectors, dtype):
    kernel, rows = compiled_expand(dtype, tile, add=add, vectors=vectors), tile[0]
    few = 16 if vectors else 0  # gains and biases are rare
    check(kernel, registers=168 if rows == 16 else 232, spilled=few)
    b = [line for line in kernel.ptx.splitlines() if "ld.global.L1::evict_first" in line]
    assert b
    assert all(".v4.b32" in line for line in b)  # B comes in 16-byte pieces
    assert "st.global.b16" not in kernel.ptx


def test_sample():
    from kernels.sample import _peaks_kernel, _sample_kernel

    columns = ("temperature_ptr", "top_p_ptr", "min_p_ptr", "uniform_ptr", "logits_ptr", "best_ptr")
    signature = dict.fromkeys(columns, "*fp32") | {"top_k_ptr": "*i32", "token_ptr": "*i64"}
    signature |= {"where_ptr": "*i32", "finite_ptr": "*i8", "V": "i32", "stride_b": "i32"}
    signature["PARTS"] = "i32"
    constants = {"MOST_PARTS": 32, "BLOCK": 4096, "CHAINED": True}
    sizes = ("V", "stride_b")
    kernel = compile_kernel(_sample_kernel, signature, constants, warps=8, aligned=sizes)
    check(kernel, registers=128)
    assert_waits_before_all_but(kernel, loads=0)
    names = ("logits_ptr", "best_ptr", "where_ptr", "PARTS", *sizes)
    signature = {name: signature[name] for name in names}
    constants = {"BLOCK": 4096, "CHAINED": True}
    kernel = compile_kernel(_peaks_kernel, signature, constants, warps=8, aligned=sizes)
    check(kernel, registers=128)
    assert_waits_before_all_but(kernel, loads=0)


def test_mask_tokens():
    from kernels.mask_tokens import _mask_tokens_kernel

    sizes = ("V", "W", "stride_b")
    signature = {"logits_ptr": "*fp32", "rows_ptr": "*i32", "bits_ptr": "*i32"}
    signature |= dict.fromkeys(sizes, "i32")
    constants = {"BLOCK": 4096, "CHAINED": True}
    kernel = compile_kernel(_mask_tokens_kernel, signature, constants, warps=4, aligned=sizes)
    check(kernel, registers=64)
    assert_waits_before_all_but(kernel, loads=0)
