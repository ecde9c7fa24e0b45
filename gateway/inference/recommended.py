"""How a checkpoint's makers would have its tokens chosen: ``generation_config.json``, read as vLLM
reads it.

It holds where a client says nothing. ``do_sample`` is not looked at: who wants the likeliest token
asks for temperature 0.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.protocol import Sampling
from gateway.config import ConfigError

FILE = "generation_config.json"
MOST_TOP_K = 2**31 - 1
LEAST_TEMPERATURE = 1e-5
REPETITION = (0.01, 10)  # smaller ones make logits overflow
LIMITS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2), "top_p": (0, 1), "top_k": (-1, MOST_TOP_K), "min_p": (0, 1),
    "repetition_penalty": REPETITION,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """Without such a file, what OpenAI's API takes where nothing is said."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    sampling: Sampling = field(init=False, repr=False, compare=False)  # where a client says nothing

    def __post_init__(self) -> None:
        temperature, top_p = drawn(self.temperature, self.top_p)
        made = Sampling(
            temperature=temperature,
            top_p=top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )
        object.__setattr__(self, "sampling", made)


def drawn(temperature: float, top_p: float) -> tuple[float, float]:
    """As engines have it: greedy where either says so."""
    greedy = top_p == 0 or temperature < LEAST_TEMPERATURE
    return (0.0, 1.0) if greedy else (temperature, top_p)


def read_recommended(model_dir: Path) -> Recommended:
    """Raises ConfigError naming the field."""
    file = model_dir / FILE
    try:
        said = json.loads(file.read_bytes())
    except FileNotFoundError:
        return Recommended()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if not isinstance(said, dict):
        raise ConfigError(f"{file}: it is no JSON object")
    found = {name: _number(file, name, said[name]) for name in LIMITS if said.get(name) is not None}
    if "top_k" in found:
        found["top_k"] = max(0, int(found["top_k"]))
    return Recommended(**found)  # type: ignore[arg-type]


def _number(file: Path, name: str, value: object) -> float:
    low, high = LIMITS[name]
    kinds = int if name == "top_k" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise ConfigError(
            f"{file}: {name}={str(value)[:40]} is not between {low} and {high}; correct it, or"
            " leave the file out with --generation-config vllm"
        )
    return value
