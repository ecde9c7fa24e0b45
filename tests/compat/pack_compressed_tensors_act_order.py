"""Packs with a compressed-tensors that still orders groups by activation (``weight_g_idx``).

It can pack zeros and not unpack them, so the weight is put together from its own functions.
"""

import torch
from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
    PackedQuantizationCompressor,
    unpack_from_int32,
)
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
)
from compressed_tensors.quantization.lifecycle.forward import dequantize
from layers import Case, Layer, Packed, run

FORMAT = "pack-quantized"
CASES = (
    *(Case(64, 32, symmetric=symmetric, act_order=True) for symmetric in (True, False)),
    Case(128, 32, group=64, act_order=True, scales="bfloat16"),
    Case(64, 32, 8, act_order=True),
    Case(64, 32),
    Case(576, 192, group=64, act_order=True),
)


def pack(layer: Layer) -> Packed:
    case = layer.case
    arguments = QuantizationArgs(
        num_bits=case.bits,
        symmetric=case.symmetric,
        strategy="group",
        group_size=case.group,
        actorder="group" if case.act_order else None,
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    state = {
        "m.weight": layer.linear.weight.data,
        "m.weight_scale": layer.scales.t().contiguous(),
        "m.weight_zero_point": (layer.zeros - 2 ** (case.bits - 1)).char().t().contiguous(),
    }
    if case.act_order:
        state["m.weight_g_idx"] = layer.g_idx
    compressed = PackedQuantizationCompressor().compress(state, {"m": scheme}, show_progress=False)
    packed = {name.removeprefix("m."): tensor for name, tensor in compressed.items()}
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=FORMAT,
        quantization_status="compressed",
        ignore=["lm_head"],
    )
    return Packed(packed, config.model_dump(mode="json"), _dense(packed, case))


def _dense(packed: dict[str, torch.Tensor], case: Case) -> torch.Tensor:
    scale, zeros = packed["weight_scale"], packed.get("weight_zero_point")
    size = torch.Size(packed["weight_shape"])
    if zeros is not None:
        zeros = unpack_from_int32(zeros, case.bits, scale.shape, packed_dim=0)
    return dequantize(
        x_q=unpack_from_int32(packed["weight_packed"], case.bits, size),
        scale=scale,
        zero_point=zeros,
        g_idx=packed.get("weight_g_idx"),
    )


if __name__ == "__main__":
    run("compressed-tensors-act-order", ("compressed-tensors",), CASES, pack)
