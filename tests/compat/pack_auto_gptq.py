"""Packs with AutoGPTQ: the format called v1, which most GPTQ checkpoints are in.

Of its modules this takes those that it chooses itself where its CUDA extensions are missing.
"""

import torch
from auto_gptq import BaseQuantizeConfig
from auto_gptq.nn_modules.qlinear import qlinear_cuda, qlinear_cuda_old
from layers import Case, Layer, Packed, run

CASES = (
    *(
        Case(64, 32, bits, symmetric=symmetric, act_order=act_order)
        for bits in (4, 8)
        for symmetric in (True, False)
        for act_order in (True, False)
    ),
    *(Case(128, 32, bits, group=group) for bits in (4, 8) for group in (64, 128, -1)),
    Case(160, 32, group=128),
    Case(160, 32, group=64, act_order=True),
    Case(64, 32, zeros=(1, 15)),
    Case(64, 32, 8, zeros=(1, 255)),
    Case(64, 32, zeros=(0, 15), variant="spoilt"),
    *(Case(576, 192, group=group, act_order=act) for group, act in ((32, True), (64, False))),
    Case(576, 192, 8, group=128, act_order=True),
    Case(320, 96, symmetric=True),
)


def pack(layer: Layer) -> Packed:
    case = layer.case
    shared = case.act_order or case.inputs % case.rows  # the old kernel knows neither
    kind = qlinear_cuda if shared else qlinear_cuda_old
    module = kind.QuantLinear(case.bits, case.group, case.inputs, case.outputs, bias=False)
    scales, zeros = layer.scales.float().t(), layer.zeros.float().t()
    module.pack(layer.linear, scales, zeros, layer.g_idx)
    if case.variant == "spoilt":
        _check_disagreement(module, case)
    config = BaseQuantizeConfig(
        bits=case.bits, group_size=case.group, desc_act=case.act_order, sym=case.symmetric
    )
    return Packed(module.state_dict(), config.to_dict(), _dense(module))


def _dense(module: torch.nn.Module) -> torch.Tensor:
    return module(torch.eye(module.infeatures, dtype=torch.float16)).t()


def _check_disagreement(module: torch.nn.Module, case: Case) -> None:
    """A zero of 0 is stored as 15, which its act-order kernel reads as 16, the other as 0."""
    other = qlinear_cuda.QuantLinear(case.bits, case.group, case.inputs, case.outputs, bias=False)
    other.load_state_dict(module.state_dict())
    difference = (_dense(module) - _dense(other)).abs() / module.scales.repeat_interleave(
        case.rows, 0
    ).t()
    assert set(difference.round().int().unique().tolist()) == {0, 16}


if __name__ == "__main__":
    run("auto-gptq", ("auto-gptq",), CASES, pack)
