"""Packs with GPTQModel, the successor of both: GPTQ v1 and v2, and AWQ ``gemm``.

It packs GPTQ as v2 and makes v1 of it where it saves one, as is done here.
"""

import torch
from gptqmodel import QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
from gptqmodel.quantization import FORMAT, METHOD
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from layers import Case, Layer, Packed, run
from names import ask

GPTQ = ("gptq", "gptq_v2")
DYNAMIC: dict[str, dict[str, int]] = {
    r"+:.*\.1\..*": {"bits": 8, "group_size": 64},
    r"-:.*down_proj$": {},
    r"model\.layers\.0\.": {"group_size": 32},
    r"^model\.layers\.11\.mlp\.gate_proj$": {"bits": 8},
    r"-:lm_head": {},
    r"self_attn": {"bits": 8},
    r".*q_proj": {"bits": 8},
}
CASES = (
    *(
        Case(64, 32, bits, symmetric=symmetric, act_order=act_order, variant=variant)
        for variant in GPTQ
        for bits in (4, 8)
        for symmetric, act_order in ((True, False), (False, True))
    ),
    *(Case(64, 32, bits, zeros=(0, 15), variant=variant) for variant in GPTQ for bits in (4, 8)),
    Case(160, 32, group=64, variant="gptq"),
    Case(96, 32, group=-1, variant="gptq"),
    Case(128, 32, 8, group=128, variant="gptq"),
    Case(100, 20, group=32, act_order=True, variant="gptq_v2"),
    Case(64, 32, symmetric=True, variant="gemm"),
    Case(96, 24, variant="gemm"),
    Case(96, 32, group=-1, variant="gemm"),
    Case(128, 32, group=64, scales="bfloat16", variant="gemm"),
    Case(64, 32, zeros=(0, 15), variant="gemm"),
    *(
        Case(576, 192, group=group, act_order=act, variant=variant)
        for group, act, variant in ((32, True, "gptq"), (64, False, "gptq_v2"), (64, False, "gemm"))
    ),
    Case(576, 192, 8, group=128, act_order=True, variant="gptq"),
)


def pack(layer: Layer) -> Packed:
    return _awq(layer) if layer.case.variant == "gemm" else _gptq(layer)


def _gptq(layer: Layer) -> Packed:
    module = TorchLinear(**_settings(layer.case)).eval()
    module.pack_original(layer.linear, _turned(layer.scales), _turned(layer.zeros), layer.g_idx)
    if layer.case.inputs % 32 == 0 and layer.case.outputs % 32 == 0:
        _check_pack(layer, module)
    dense = module.dequantize_weight().t().clone()
    config = _config(layer.case, METHOD.GPTQ)
    if layer.case.variant == "gptq":
        convert_gptq_v2_to_v1_format_module(module, config)
    return Packed(module.state_dict(), _written(config), dense)


def _check_pack(layer: Layer, module: TorchLinear) -> None:
    """Its two packers must agree."""
    other = TorchLinear(**_settings(layer.case))
    other.pack(layer.linear, _turned(layer.scales), _turned(layer.zeros), layer.g_idx)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), (layer.case.name, name)


def _awq(layer: Layer) -> Packed:
    case = layer.case
    module = AwqTorchLinear(**_settings(case))
    scales = layer.scales if case.scales == "bfloat16" else layer.scales.float()
    module.pack(layer.linear, scales.t(), _turned(layer.zeros))
    stored = (module.qweight, module.qzeros, module.scales)
    dense = dequantize_gemm(*stored, case.bits, case.rows).t()
    return Packed(module.state_dict(), _written(_config(case, METHOD.AWQ)), dense)


def _settings(case: Case) -> dict[str, object]:
    return {
        "bits": case.bits,
        "group_size": case.group,
        "sym": case.symmetric,
        "desc_act": case.act_order,
        "in_features": case.inputs,
        "out_features": case.outputs,
    }


def _config(case: Case, method: METHOD) -> QuantizeConfig:
    return QuantizeConfig(
        bits=case.bits,
        group_size=case.group,
        sym=case.symmetric,
        desc_act=case.act_order,
        quant_method=method,
        format=FORMAT(case.variant),
        offload_to_disk=False,
    )


def _written(config: QuantizeConfig) -> dict[str, object]:
    """Without ``meta``: how it was quantised, not how it is stored."""
    return {name: value for name, value in config.to_dict().items() if name != "meta"}


def _turned(values: torch.Tensor) -> torch.Tensor:
    """float32 [N, G]."""
    return values.float().t().contiguous()


def main() -> None:
    run("gptqmodel", ("gptqmodel",), CASES, pack)
    config = QuantizeConfig(bits=4, group_size=128, dynamic=DYNAMIC, offload_to_disk=False)

    def answer(name: str) -> tuple[int, int] | None:
        if config.dynamic_get(name) is False:
            return None
        bits = config.dynamic_get(name, "bits", config.bits)
        return int(bits), config.dynamic_get(name, "group_size", config.group_size)

    ask("gptqmodel", _written(config), answer)


if __name__ == "__main__":
    main()
