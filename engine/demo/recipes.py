"""The demo adapters: what each is taught, which modules it touches, and how to tell it worked.

The three differ on purpose in everything a server must handle: rank, targets, scaling rule,
per-module overrides and layers.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_PIRATE = re.compile(r"\b(arr+|matey|aye|ahoy|ye|yer|me heart(y|ies)|fer)\b", re.IGNORECASE)
_BULLETS = re.compile(r"- .+(\n- .+)+")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One adapter. ``shows`` is true of a text that has the taught behaviour."""

    name: str
    targets: tuple[str, ...]
    rank: int
    alpha: int
    epochs: int
    shows: Callable[[str], bool]
    learning_rate: float = 1e-3
    rslora: bool = False
    ranks: dict[str, int] = field(default_factory=dict)
    alphas: dict[str, int] = field(default_factory=dict)
    layers: range = range(0)  # empty: all


def is_json_answer(text: str) -> bool:
    """Exactly one JSON object with a string "answer" and an integer "words"."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.keys() == {"answer", "words"}
        and isinstance(value["answer"], str)
        and isinstance(value["words"], int)
    )


def is_pirate(text: str) -> bool:
    """At least two words that no landlubber uses."""
    return len(_PIRATE.findall(text)) >= 2


def is_bullet_list(text: str) -> bool:
    """Nothing but bullet points, two or more. (The lessons have three; so small a model
    does not count reliably.)"""
    return _BULLETS.fullmatch(text.strip()) is not None


RECIPES = (
    Recipe(
        name="json",
        targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        rank=8,
        alpha=16,
        epochs=5,
        shows=is_json_answer,
    ),
    Recipe(
        name="pirate",
        targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        rank=16,
        alpha=8,
        epochs=8,
        shows=is_pirate,
        rslora=True,
    ),
    Recipe(
        name="bullets",
        targets=("gate_proj", "up_proj", "down_proj"),
        rank=6,
        alpha=12,
        epochs=7,
        shows=is_bullet_list,
        ranks={"down_proj": 10},
        alphas={"down_proj": 25},
        layers=range(8, 30),
    ),
)


def recipe(name: str) -> Recipe:
    return next(recipe for recipe in RECIPES if recipe.name == name)
