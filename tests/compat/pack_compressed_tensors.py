"""Packs with compressed-tensors: ``pack-quantized``, what LLM Compressor writes.

This version has no act-order by groups any more; ``pack_compressed_tensors_act_order`` has.
"""

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
)
from compressed_tensors.utils.match import is_match, match_targets
from layers import Case, Layer, Packed, run
from names import ask

FORMAT = "pack-quantized"
CASES = (
    *(Case(64, 32, bits, symmetric=symmetric) for bits in (4, 8) for symmetric in (True, False)),
    *(Case(128, 12, bits, group=group) for bits in (4, 8) for group in (64, 128, -1)),
    Case(100, 20, group=-1),
    Case(100, 20, 8, group=-1, symmetric=True),
    Case(64, 32, zeros=(0, 15), scales="bfloat16"),
    Case(64, 32, 8, zeros=(0, 255)),
    Case(576, 192, group=64),
    Case(576, 192, group=-1, symmetric=True, scales="bfloat16"),
    Case(320, 96, 8),
)
TARGETS = {  # bits and group size
    "Linear": (4, 128),
    r"re:.*\.1.*": (8, 64),
    r"re:.*\.1\.mlp": (8, 32),
    "re:model.*k_proj$": (4, 32),
    "model.layers.0.mlp.gate_proj": (4, 64),
    "model.layers.11.mlp.gate_proj": (8, 128),
}
IGNORED = ["lm_head", r"re:.*layers\.0.*q_proj", "model.layers.10.mlp.down_proj"]


def pack(layer: Layer) -> Packed:
    case = layer.case
    scheme = _scheme("Linear", case.bits, case.group, case.symmetric)
    state = {
        "weight": layer.linear.weight.data,
        "weight_scale": layer.scales.t().contiguous(),
        "weight_zero_point": (layer.zeros - 2 ** (case.bits - 1)).char().t().contiguous(),
    }
    compressor = BaseCompressor.get_value_from_registry(FORMAT)
    packed = compressor.compress(state, scheme)
    dense = compressor.decompress(packed, scheme)["weight"]
    return Packed(packed, _config({"group_0": scheme}, ["lm_head"]), dense)


def _scheme(target: str, bits: int, group: int, symmetric: bool) -> QuantizationScheme:
    weights = QuantizationArgs(
        num_bits=bits,
        symmetric=symmetric,
        strategy="channel" if group == -1 else "group",
        group_size=None if group == -1 else group,
    )
    return QuantizationScheme(targets=[target], weights=weights, format=FORMAT)


def _config(groups: dict[str, QuantizationScheme], ignored: list[str]) -> dict[str, object]:
    config = QuantizationConfig(
        config_groups=groups, format=FORMAT, quantization_status="compressed", ignore=ignored
    )
    return config.model_dump(mode="json")


def main() -> None:
    run("compressed-tensors", ("compressed-tensors",), CASES, pack)
    linear = torch.nn.Linear(1, 1)

    def answer(name: str) -> tuple[int, int] | None:
        targets = match_targets(name, linear, TARGETS)
        ignored = not targets or is_match(name, linear, IGNORED)
        return None if ignored else TARGETS[targets[0]]

    groups = {
        f"group_{number}": _scheme(target, *settings, True)
        for number, (target, settings) in enumerate(TARGETS.items())
    }
    ask("compressed-tensors", _config(groups, IGNORED), answer)


if __name__ == "__main__":
    main()
