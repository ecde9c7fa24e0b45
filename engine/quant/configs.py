"""Reads the quantisation config of a checkpoint, in the spelling of each tool that writes one.

It is ``quantization_config`` in config.json, or the older ``compression_config`` there
(compressed-tensors), ``quantize_config.json`` (GPTQ), ``quant_config.json`` (AWQ) or
``quantization_config.json`` (AutoRound, see ``auto_round``). GPTQ and AWQ have one setting for
all modules; GPTQModel's ``dynamic`` overrides it by regular expression, and ``-:`` before one
exempts what it matches. AWQ's ``modules_to_not_convert`` is not followed: its writers match it in
different ways, and the tensors show which modules are quantised.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from engine.errors import CheckpointInvalid
from engine.quant.auto_round import NAMES, read_auto_round
from engine.quant.compressed_config import read_block, read_compressed
from engine.quant.schemes import (
    BITS,
    Claim,
    Rule,
    Scheme,
    Zeros,
    check,
    names_matching,
    read_flag,
    read_group_size,
    refuse,
)

Config = Mapping[str, Any]
Reader = Callable[[str, Config], Claim]
METHODS = ("gptq", "awq", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt", *NAMES)
# What tells the method where none is named.
_SIGNS: Mapping[str, str] = {
    "load_in_4bit": "bitsandbytes", "load_in_8bit": "bitsandbytes", "mode": "mlx",
    "config_groups": "compressed-tensors", "zero_point": "awq", "w_bit": "awq",
}  # fmt: skip
_UNSERVED = ("rotation", "activation")  # GPTQModel: inputs rotated, or quantised, on the way
_ZEROS: Mapping[str, Zeros] = {"gptq": "v1", "gptq_v1": "v1", "gptq_v2": "v2"}


def read_scheme(configs: Mapping[str, Config]) -> Scheme:
    """From the first non-empty of the named JSON objects. Raises CheckpointInvalid."""
    for source, config in configs.items():
        if config and not isinstance(config, Mapping):
            raise CheckpointInvalid(f"{source}: found {config!r:.80}; expected an object")
        if config:
            return _read(source, config)
    return Scheme()


def _read(source: str, config: Config) -> Scheme:
    method = _method(config)
    check(source, "quant_method", method, METHODS)
    if method == "compressed-tensors":
        return read_compressed(source, config)
    if method in NAMES:
        return read_auto_round(source, config)
    if method == "modelopt" and config.get("quant_algo") != "FP8":
        said = f"modelopt with quant_algo={config.get('quant_algo')!r}"
        refuse(source, "quant_method", said, "'FP8' as its quant_algo")
    if method in ("fp8", "fbgemm_fp8", "modelopt"):
        return Scheme(default=_fp8(source, config))
    for field in _UNSERVED:
        if config.get(field):
            refuse(source, field, config[field], "none")
    read = _awq if method == "awq" else _gptq
    return Scheme(default=read(source, config), rules=tuple(_dynamic(source, config, read)))


def _method(config: Config) -> str:
    method = str(config.get("quant_method") or config.get("method") or "").lower()
    if not method:
        return next((name for sign, name in _SIGNS.items() if sign in config), "gptq")
    return "awq" if method == "gptq" and _layout(config) == "gemm" else method


def _layout(config: Config) -> str:
    return str(config.get("checkpoint_format") or config.get("format") or "").lower()


def _gptq(source: str, config: Config) -> Claim:
    layout = "marlin" if config.get("is_marlin_format") else _layout(config)
    check(source, "checkpoint_format", layout or "gptq", tuple(_ZEROS))
    bits = config.get("bits", 4)
    check(source, "bits", bits, BITS)
    return Claim(
        method="gptq",
        bits=bits,
        group_size=read_group_size(source, config.get("group_size", 128)),
        symmetric=read_flag(source, "sym", config.get("sym")),
        act_order=read_flag(source, "desc_act", config.get("desc_act")),
        zeros=_ZEROS.get(layout),
    )


def _awq(source: str, config: Config) -> Claim:
    version = str(config.get("version") or _layout(config) or "gemm").lower()
    check(source, "version", version, ("gemm",))
    if config.get("backend") == "llm-awq":
        refuse(source, "backend", "llm-awq", "'autoawq': the other packs words in its own way")
    check(source, "bits", config.get("bits", config.get("w_bit", 4)), (4,))
    zero_point = read_flag(source, "zero_point", config.get("zero_point"))
    size = config.get("group_size", config.get("q_group_size", 128))
    return Claim(
        method="awq",
        bits=4,
        group_size=read_group_size(source, size),
        symmetric=None if zero_point is None else not zero_point,
    )


def _fp8(source: str, config: Config) -> Claim:
    """``modules_to_not_convert`` is not followed, as with AWQ: the tensors show it."""
    check(source, "fmt", config.get("fmt", "e4m3"), ("e4m3", "float8_e4m3fn"))
    block = config.get("weight_block_size")
    return Claim(
        method="fp8",
        bits=8,
        kind="float",
        block=None if block is None else read_block(source, block),
    )


def _dynamic(source: str, config: Config, read: Reader) -> list[Rule]:
    """As in GPTQModel the first expression that matches holds."""
    settings = config.get("dynamic") or {}
    if not isinstance(settings, Mapping):
        refuse(source, "dynamic", settings, "an object of settings by expression")
    rules = []
    for key, override in settings.items():
        names = names_matching(source, "dynamic", key[2:] if key[:2] in ("+:", "-:") else key)
        exempt = key.startswith("-:")
        if not exempt and not isinstance(override, Mapping):
            refuse(source, f"dynamic[{key!r}]", override, "an object of settings")
        rules.append(Rule(names, None if exempt else partial(_override, read, config, override)))
    return rules


def _override(read: Reader, config: Config, override: Config, module: str) -> Claim:
    return read(f"{module}, by dynamic", {**config, **override})
