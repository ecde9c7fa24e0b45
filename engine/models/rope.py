"""What ``config.json`` says about RoPE, in our words.

Old and new spellings are read: ``rope_theta`` and ``rope_scaling``, or ``rope_parameters``. A key
that we do not know might change the result, so it is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import CheckpointInvalid
from engine.models.fields import Config, count, flag, number


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """All rotations slower by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Stretches the slow rotations: Llama 3.1's context extension."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Stretches the slow rotations and sharpens attention: YaRN (arXiv 2309.00071)."""

    factor: float
    original_max_position: int
    beta_fast: float  # turns over the original context; faster rotations are kept
    beta_slow: float  # slower ones are divided by factor
    attention_factor: float  # scales q and k
    truncate: bool  # the ramp between the two starts and ends at whole frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """NTK scaling that sets in beyond the trained length; up to there RoPE is unscaled.

    Beyond it, each frequency follows from the length of the whole sequence, so a key would have
    to be rotated anew with every token. Keys in pages are rotated once. The trained length is
    therefore where we stop: all that is served is exact.
    """

    factor: float


Scaling = LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
WHY = {  # a setting is not supported, and what to do
    "attn_factor": (
        ": transformers ignores it, others multiply 0.1 ln(factor) + 1 with it; leave it out, or "
        "write the product as attention_factor, which all read alike"
    ),
}
KNOWN = frozenset({
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    theta: float
    scaling: Scaling | None = None

    def reach(self, max_position: int) -> int:
        """Positions the model is meant for, given ``max_position_embeddings``.

        With linear scaling that key holds the length before scaling, by its documentation.
        YaRN's original length is stated apart, and the key may hold either length.
        """
        match self.scaling:
            case LinearScaling(factor=factor):
                return int(max_position * factor)
            case YarnScaling(factor=factor, original_max_position=original):
                return max(max_position, int(original * factor))
        return max_position


def read_rope(config: Config, max_position: int) -> Rope:
    """Raises CheckpointInvalid for a kind or a setting that we would not compute."""
    settings = _settings(config)
    if unknown := sorted(settings.keys() - KNOWN):
        why = WHY.get(unknown[0], "")
        raise CheckpointInvalid(f"config.json: RoPE setting {unknown[0]!r} is not supported{why}")
    partial = settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise CheckpointInvalid(f"config.json: partial_rotary_factor={partial}; expected 1.0")
    theta = number(config if settings.get("rope_theta") is None else settings, "rope_theta", 1e4)
    kind = settings.get("rope_type") or "default"
    if kind not in KINDS:
        raise CheckpointInvalid(f"config.json: rope_type={kind!r}; expected one of {KINDS}")
    original = count(config, "original_max_position_embeddings", max_position)
    if "original_max_position_embeddings" not in config:
        original = count(settings, "original_max_position_embeddings", max_position)
    try:
        return Rope(theta=theta, scaling=_scaling(kind, settings, original, max_position))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointInvalid(f"config.json: rope_type {kind!r} without {error}") from error


def _settings(config: Config) -> Config:
    """Under either name; under both they must not contradict each other."""
    found: dict[str, object] = {}
    for key in ("rope_parameters", "rope_scaling"):
        settings = config.get(key)
        if not settings:
            continue
        if not isinstance(settings, Mapping):
            raise CheckpointInvalid(f"config.json: {key}={settings!r}; expected an object")
        same = {**settings, "rope_type": settings.get("rope_type") or settings.get("type")}
        common = found.keys() & same.keys() - {"type"}
        for name in sorted(common, key=lambda name: (name != "rope_type", name)):
            if found[name] != same[name]:
                raise CheckpointInvalid(
                    f"config.json: rope_parameters and rope_scaling differ in {name}: "
                    f"{found[name]!r} and {same[name]!r}"
                )
        found |= same
    return found


def _scaling(kind: str, settings: Config, original: int, max_position: int) -> Scaling | None:
    if kind == "linear":
        return LinearScaling(factor=_factor(settings["factor"]))
    if kind == "dynamic":
        return DynamicScaling(factor=_factor(settings["factor"]))
    if kind == "yarn":
        return _yarn(settings, original, max_position)
    if kind == "llama3":
        return Llama3Scaling(
            factor=_factor(settings["factor"]),
            low_freq_factor=float(settings["low_freq_factor"]),
            high_freq_factor=float(settings["high_freq_factor"]),
            original_max_position=original,
        )
    return None


def _yarn(settings: Config, original: int, max_position: int) -> YarnScaling:
    stated = settings["factor"]
    factor = _factor(max_position / original if stated is None else stated)
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        beta_fast=number(settings, "beta_fast", 32),
        beta_slow=number(settings, "beta_slow", 1),
        attention_factor=number(settings, "attention_factor", _sharpening(settings, factor)),
        truncate=flag(settings, "truncate", True),
    )


def _sharpening(settings: Config, factor: float) -> float:
    """The paper's ``0.1 ln(factor) + 1``, or the quotient of two such where weights are given."""

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0

    over, under = settings.get("mscale"), settings.get("mscale_all_dim")
    return grown(over) / grown(under) if over and under else grown(1.0)


def _factor(value: object) -> float:
    factor = float(value)  # type: ignore[arg-type]
    if not 1.0 <= factor < math.inf:
        raise ValueError(f"a factor of at least 1 (found {factor})")
    return factor
