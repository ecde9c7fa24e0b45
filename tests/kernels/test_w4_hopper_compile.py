"""The Hopper 4-bit product compiles as it should: no spills, no register changed under a product.

Needs no GPU; skipped under TRITON_INTERPRET=1.
"""

import re

import pytest
import torch
from triton.experimental.gluon._runtime import GluonASTSource

from kernels.launch import interpreting
from kernels.w4_hopper import LAYOUT, _w4_kernel, choose_tile
from tests.kernels.compiled import compile_source, hazards

pytestmark = pytest.mark.skipif(interpreting(), reason="interpreted kernels cannot be compiled")

SHARED_LIMIT = 227 * 1024  # bytes a program may use on Hopper


def compile_tile(tile, dtype, span, *, bias=False, signals=False):
    names = _w4_kernel.arg_names
    signature = dict.fromkeys(names, "constexpr") | {
        "x_desc": f"tensordesc<{dtype}[{tile.rows}, 64],{LAYOUT!r}>",
        "w_desc": f"tensordesc<i16[128, 64],{LAYOUT!r}>",
        "meta": "*i32",
        "bias": f"*{dtype}",
        "out": "*fp32",
        **dict.fromkeys(("M", "N", "K_BLOCKS", "PART"), "i32"),
    }
    constants = {
        "BM": tile.rows, "GROUPS": tile.groups, "NBLK": tile.blocks, "WST": tile.weight_stages,
        "XST": tile.x_stages, "SPAN": span, "REGISTERS": tile.registers,
        "HAS_BIAS": bias, "CHAINED": True,
    }  # fmt: skip
    if signals:
        signature["signals"] = "*i32"
    else:
        constants["signals"] = None
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in ("meta", "bias", "out", "N")}
    options = {"num_warps": 4} | ({"maxnreg": tile.cap} if tile.cap else {})
    return compile_source(GluonASTSource(_w4_kernel, signature, values, aligned), options)


@pytest.mark.parametrize("rows", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(
    ("dtype", "span", "signals"), [("fp16", 2, False), ("bf16", 1, False), ("fp16", 2, True)]
)
def test_every_tile_that_is_chosen_compiles_within_its_budget(rows, dtype, span, signals):
    tile = choose_tile(rows, 6144, 16, torch.device("cpu"))
    kernel = compile_tile(tile, dtype, span, signals=signals)
    assert tile.rows == rows
    assert kernel.spilled == 0
    assert kernel.shared <= SHARED_LIMIT
    assert kernel.register_wgmma
    assert kernel.hazards == []


def test_copies_of_x_wait_for_the_kernel_before_and_copies_of_weights_do_not():
    tile = choose_tile(16, 6144, 16, torch.device("cpu"))
    kernel = compile_tile(tile, "fp16", 2, bias=True)
    assert kernel.spilled == 0
    steps = re.findall(r"griddepcontrol\.\w+|cp\.async\.bulk\.tensor|st\.global", kernel.ptx)
    assert steps.count("griddepcontrol.launch_dependents") == 1
    copies = [i for i, step in enumerate(steps) if step == "cp.async.bulk.tensor"]
    assert len(copies) == 2
    waited = [steps[i - 1] == "griddepcontrol.wait" for i in copies]
    assert sorted(waited) == [False, True]  # weights, x
    assert steps[steps.index("st.global") - 1] == "griddepcontrol.wait"


def test_the_hazard_check_sees_a_write_under_a_product_and_not_one_after_a_wait():
    product = "HGMMA.64x16x16.F32 R24, R8, gdesc[UR4], R24"
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    assert hazards([product, "IADD3 R9, R1, R2, RZ"]) == ["IADD3 R9, R1, R2, RZ"]
    assert hazards([product, wait, "IADD3 R9, R1, R2, RZ"]) == []
    assert hazards([product, "IADD3 R12, R1, R2, RZ"]) == []
    assert hazards([product, "@P0 LOP3.LUT P1, R11, R1, 0xf, RZ"]) != []
