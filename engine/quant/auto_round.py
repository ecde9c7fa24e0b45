"""Reads what AutoRound says of a checkpoint that it wrote in its own format.

The tensors are those of GPTQ or of AWQ: ``packing_format`` says whose, and for GPTQ which zeros.
Older files have no such key; then the tensors tell. ``extra_config`` has settings of single
modules, by name, or by regular expression where a name has signs of one; 16 bits and more mean
not quantised. ``block_name_to_quantize`` is not followed: the tensors show it.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from engine.quant.schemes import (
    BITS,
    Claim,
    Method,
    Rule,
    Scheme,
    Zeros,
    check,
    names_searched,
    read_flag,
    read_group_size,
    refuse,
)

Config = Mapping[str, Any]
NAMES = ("auto-round", "auto_round", "intel/auto-round")  # of the method
PACKINGS: Mapping[str, tuple[Method, Zeros | None]] = {
    "auto_round:auto_gptq": ("gptq", "v1"),
    "auto_round:gptqmodel": ("gptq", "v2"),
    "auto_round": ("gptq", "v2"),
    "auto_round:auto_awq": ("awq", None),
}
WIDE = (16, 32)  # bits of what is left as it was
_EXPRESSION = re.compile(r"[*+?^$()\[\]{}|\\]")


def read_auto_round(source: str, config: Config) -> Scheme:
    """Raises CheckpointInvalid."""
    settings = config.get("extra_config") or {}
    if not isinstance(settings, Mapping):
        refuse(source, "extra_config", settings, "an object of settings by module")
    for name, override in settings.items():
        if not isinstance(override, Mapping):
            refuse(source, f"extra_config[{name!r}]", override, "an object of settings")
    named = sorted(settings.items(), key=lambda item: _EXPRESSION.search(item[0]) is not None)
    rules = [
        Rule(_names(source, name), partial(_override, config, override))
        for name, override in named  # names hold before expressions
    ]
    return Scheme(default=_claim(source, config), rules=tuple(rules))


def _names(source: str, name: str) -> Callable[[str], bool]:
    if _EXPRESSION.search(name):
        return names_searched(source, "extra_config", name)
    return lambda module: module == name


def _override(config: Config, override: Config, module: str) -> Claim | None:
    return _claim(f"{module}, by extra_config", {**config, **override})


def _claim(source: str, config: Config) -> Claim | None:
    bits = config.get("bits", 4)
    if bits in WIDE:
        return None
    check(source, "bits", bits, BITS)
    check(source, "data_type", config.get("data_type") or "int", ("int",))
    check(source, "act_bits", config.get("act_bits") or 16, WIDE)
    if config.get("super_bits"):
        refuse(source, "super_bits", config["super_bits"], "none: scales that are not quantised")
    packing = config.get("packing_format")
    method: Method | None = None
    zeros: Zeros | None = None
    if packing is not None:
        check(source, "packing_format", packing, tuple(PACKINGS))
        method, zeros = PACKINGS[packing]
    return Claim(
        method=method,
        bits=bits,
        group_size=read_group_size(source, config.get("group_size", 128)),
        symmetric=read_flag(source, "sym", config.get("sym")),
        zeros=zeros,
    )
