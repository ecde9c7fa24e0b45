"""Reads the config of compressed-tensors, the library that LLM Compressor writes with.

``config_groups`` give the settings of the modules that their ``targets`` name: by full name, by
``re:`` and a regular expression from the start of the name, or by class. Of several targets that
name a module an exact name holds before an expression, and that before a class. ``ignore``
exempts modules in the same terms. A module nobody names is not quantised.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from engine.quant.schemes import (
    BITS,
    GROUPS,
    Claim,
    Rule,
    Scheme,
    check,
    names_matching,
    read_flag,
    refuse,
)

Config = Mapping[str, Any]
FORMAT = "pack-quantized"
FORMATS = (FORMAT, "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
_FORMATS_OF = {
    "int": (FORMAT, "int-quantized", "naive-quantized"),
    "float": ("float-quantized", "naive-quantized"),
}
STRATEGIES = ("tensor", "channel", "group", "block")
FLOAT8 = ("float", 8)
REORDERED, IN_ORDER = ("group", "dynamic", True), ("weight", "static", False)  # activation orders
CLASS = "Linear"  # of every module that may be quantised here
_UNSERVED = {"sparsity_config": "format", "transform_config": "config_groups"}


def read_compressed(source: str, config: Config) -> Scheme:
    """Raises CheckpointInvalid for another format; for settings of a group, see ``Scheme``."""
    form = config.get("format", FORMAT)
    check(source, "format", form, FORMATS)
    form = FORMAT if form == "mixed-precision" else form
    kv = config.get("kv_cache_scheme")  # a wish: --kv-cache-dtype decides, and scales as it goes
    if kv and not (isinstance(kv, Mapping) and (kv.get("type"), kv.get("num_bits")) == FLOAT8):
        refuse(source, "kv_cache_scheme", kv, "none, or floats of 8 bits")
    for field, part in _UNSERVED.items():
        said = config.get(field) or {}
        if not isinstance(said, Mapping) or said.get(part) not in (None, "dense", {}):
            refuse(source, field, said, "none")
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        refuse(source, "config_groups", groups, "an object of groups by name")
    exempt = config.get("ignore") or []
    if not isinstance(exempt, list):
        refuse(source, "ignore", exempt, "a list of names")
    ignored = (_names(source, "ignore", name) for name in exempt)
    targets: dict[str, Callable[[str], Claim | None]] = {}
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
            refuse(source, f"config_groups.{name}", group, "an object with a list of targets")
        read = partial(_claim, name, {"format": form, **_said(group)})
        targets |= dict.fromkeys(group["targets"], read)
    return Scheme(
        default=None,
        rules=(
            *(Rule(names, None) for names in ignored),
            *(
                Rule(_names(source, "targets", target), targets[target])
                for target in sorted(targets, key=_precedence)
            ),
        ),
    )


def _names(source: str, field: str, target: object) -> Callable[[str], bool]:
    if isinstance(target, str) and not target.startswith("re:"):
        return lambda module: target in (module, CLASS)
    expression = target.removeprefix("re:") if isinstance(target, str) else target
    return names_matching(source, field, expression)


def _precedence(target: str) -> tuple[bool, bool, str]:
    return target == CLASS, target.startswith("re:"), target


def _claim(name: str, group: Config, module: str) -> Claim | None:
    """None for a group that leaves the weights as they are."""
    weights = group.get("weights")
    if not weights:
        return None
    source = f"{module}: config_groups.{name}"
    form, kind = group["format"], weights.get("type", "int")
    check(source, "type", kind, ("int", "float"))
    packed = form == FORMAT
    check(source, "num_bits", weights.get("num_bits", 8), BITS if packed else (8,))
    check(source, "format", form, _FORMATS_OF[kind])
    narrow = () if weights.get("num_bits", 8) == 8 else ("input_activations",)
    for field in (*narrow, "output_activations"):  # of 8 bits, inputs are taken as they are
        if group.get(field):
            refuse(source, field, group[field], "none: activations are not quantised")
    check(source, "dynamic", weights.get("dynamic", False), (False,))
    order = weights.get("actorder") or False
    check(source, "actorder", order, (*REORDERED, *IN_ORDER))
    strategy = weights.get("strategy") or _strategy(weights.get("group_size"))
    check(source, "strategy", strategy, ("group", "channel") if packed else STRATEGIES)
    size = weights.get("group_size") if strategy == "group" else -1
    check(source, "group_size", size, GROUPS)
    return Claim(
        method="compressed-tensors",
        bits=weights.get("num_bits", 8),
        group_size=None if strategy == "block" else size,
        symmetric=read_flag(source, "symmetric", weights.get("symmetric", True)),
        act_order=order in REORDERED,
        kind=kind,
        block=read_block(source, weights.get("block_structure")) if strategy == "block" else None,
    )


def read_block(source: str, found: object) -> tuple[int, int]:
    """Outputs and inputs that share a scale."""
    if (
        not isinstance(found, list | tuple)
        or len(found) != 2
        or not all(type(side) is int and side > 0 for side in found)
    ):
        refuse(source, "block size", found, "two numbers, as [128, 128]")
    return found[0], found[1]


def _said(group: Config) -> Config:
    """Without what is null."""
    return {key: value for key, value in group.items() if value is not None}


def _strategy(group_size: object) -> str:
    """What the library infers where none is named."""
    if group_size is None:
        return "tensor"
    return "channel" if group_size == -1 else "group"
