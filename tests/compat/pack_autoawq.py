"""Packs with AutoAWQ's ``gemm``, the version of AWQ that we serve.

It packs nothing without zero points: ``zero_point=false`` gives it none, and it asserts them.
"""

import torch
from awq.models._config import AwqConfig
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm
from layers import Case, Layer, Packed, run

CASES = (
    Case(64, 32),
    Case(96, 64),
    Case(128, 32, group=64),
    Case(128, 32, group=128),
    Case(96, 32, group=-1),
    Case(64, 32, symmetric=True),
    Case(64, 64, zeros=(0, 15)),
    Case(576, 192, group=64),
    Case(320, 96),
)


def pack(layer: Layer) -> Packed:
    case = layer.case
    module = WQLinear_GEMM.from_linear(
        layer.linear, case.bits, case.rows, scales=layer.scales.float(), zeros=layer.zeros.float()
    )
    config = AwqConfig(zero_point=not case.symmetric, q_group_size=case.group)
    stored = (module.qweight, module.qzeros, module.scales)
    dense = dequantize_gemm(*stored, case.bits, case.rows).t()
    return Packed(module.state_dict(), config.to_transformers_dict(), dense)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run("autoawq", ("autoawq",), CASES, pack)
