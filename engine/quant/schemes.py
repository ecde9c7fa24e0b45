"""What a checkpoint claims about its own quantisation, and what of it we serve.

The claim is ``quantization_config`` in config.json, or the older ``quantize_config.json`` (GPTQ)
and ``quant_config.json`` (AWQ). It is only a claim: the tensors decide (see ``formats``), and a
module that contradicts it is refused. A checkpoint without a claim is read by its tensors alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from engine.errors import CheckpointInvalid

Method = Literal["gptq", "awq"]
Zeros = Literal["v1", "v2"]  # v1 stores a GPTQ zero minus one, v2 stores it as it is
GROUPS = (32, 64, 128, -1)
_ZEROS: Mapping[str, Zeros] = {"gptq": "v1", "gptq_v1": "v1", "gptq_v2": "v2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """None means: not said."""

    method: Method | None = None
    group_size: int | None = None  # rows of one scale; -1: all of them
    symmetric: bool | None = None
    act_order: bool | None = None
    zeros: Zeros | None = None

    @classmethod
    def read(cls, configs: Mapping[str, Mapping[str, Any]]) -> "Claim":
        """From the first non-empty of the named JSON objects. Raises CheckpointInvalid."""
        for source, config in configs.items():
            if config:
                return _read(source, config)
        return cls()


def _read(source: str, config: Mapping[str, Any]) -> Claim:
    method = str(config.get("quant_method") or config.get("method") or "").lower()
    if not method:
        method = "awq" if "zero_point" in config or "w_bit" in config else "gptq"
    layout = str(config.get("checkpoint_format") or config.get("format") or "").lower()
    if method == "gptq" and layout == "gemm":
        method = "awq"
    if method not in ("gptq", "awq"):
        _refuse(source, "quant_method", method, "'gptq' or 'awq'")
    _check(source, "bits", config.get("bits", config.get("w_bit", 4)), (4,))
    group = config.get("group_size", config.get("q_group_size", 128))
    group = -1 if group in (None, 0) else group
    _check(source, "group_size", group, GROUPS)
    if config.get("dynamic"):
        _refuse(source, "dynamic", config["dynamic"], "one setting for all modules")
    if method == "awq":
        version = str(config.get("version") or layout or "gemm").lower()
        _check(source, "version", version, ("gemm",))
        zero_point = config.get("zero_point")
        symmetric = None if zero_point is None else not zero_point
        return Claim(method="awq", group_size=group, symmetric=symmetric)
    _check(source, "checkpoint_format", layout or "gptq", tuple(_ZEROS))
    return Claim(
        method="gptq",
        group_size=group,
        symmetric=config.get("sym"),
        act_order=config.get("desc_act"),
        zeros=_ZEROS.get(layout),
    )


def _check(source: str, field: str, found: object, allowed: tuple[object, ...]) -> None:
    if found not in allowed:
        _refuse(source, field, found, " or ".join(map(repr, allowed)))


def _refuse(source: str, field: str, found: object, expected: str) -> NoReturn:
    raise CheckpointInvalid(f"{source}: {field}={found!r}; expected {expected}")
