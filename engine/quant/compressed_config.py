"""Reads the config of compressed-tensors, the library that LLM Compressor writes with.

``config_groups`` give the settings of the modules that their ``targets`` name: by full name, by
``re:`` and a regular expression from the start of the name, or by class. Of several targets that
name a module an exact name holds before an expression, and that before a class. ``ignore``
exempts modules in the same terms. A module nobody names is not quantised.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from engine.quant.schemes import BITS, GROUPS, Claim, Rule, Scheme, check, names_matching, refuse

Config = Mapping[str, Any]
FORMAT = "pack-quantized"
CLASS = "Linear"  # of every module that may be quantised here
_UNSERVED = ("kv_cache_scheme", "sparsity_config", "transform_config")


def read_compressed(source: str, config: Config) -> Scheme:
    """Raises CheckpointInvalid for another format; for settings of a group, see ``Scheme``."""
    check(source, "format", config.get("format", FORMAT), (FORMAT, "mixed-precision"))
    for field in _UNSERVED:
        if config.get(field):
            refuse(source, field, config[field], "none")
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        refuse(source, "config_groups", groups, "an object of groups by name")
    ignored = (_names(source, "ignore", name) for name in config.get("ignore") or ())
    targets: dict[str, Callable[[str], Claim | None]] = {}
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
            refuse(source, f"config_groups.{name}", group, "an object with a list of targets")
        targets |= {target: partial(_claim, name, group) for target in group["targets"]}
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
    check(source, "format", group.get("format") or FORMAT, (FORMAT,))
    for field in ("input_activations", "output_activations"):
        if group.get(field):
            refuse(source, field, group[field], "none: activations are not quantised")
    check(source, "type", weights.get("type", "int"), ("int",))
    check(source, "num_bits", weights.get("num_bits", 8), BITS)
    check(source, "dynamic", weights.get("dynamic", False), (False,))
    strategy = weights.get("strategy") or _strategy(weights.get("group_size"))
    check(source, "strategy", strategy, ("group", "channel"))
    size = weights.get("group_size") if strategy == "group" else -1
    check(source, "group_size", size, GROUPS)
    return Claim(
        method="compressed-tensors",
        bits=weights.get("num_bits", 8),
        group_size=size,
        symmetric=weights.get("symmetric", True),
        act_order=weights.get("actorder") in ("group", "dynamic", True),
    )


def _strategy(group_size: object) -> str:
    """What the library infers where none is named."""
    if group_size is None:
        return "tensor"
    return "channel" if group_size == -1 else "group"
