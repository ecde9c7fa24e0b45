"""Typed reads from ``config.json``. A refusal names the key and what was found there."""

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import CheckpointInvalid

Config = Mapping[str, Any]


def count(config: Config, key: str, default: int | None = None, *, least: int = 1) -> int:
    """An integer of at least ``least``; ``default`` where the key is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise CheckpointInvalid(f"config.json: {key}={value!r}; expected {wanted}")
    return value


def number(config: Config, key: str, default: float) -> float:
    """Above zero and finite; ``default`` where the key is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not 0 < found < math.inf:
        raise CheckpointInvalid(f"config.json: {key}={value!r}; expected a number above 0")
    return found


def flag(config: Config, key: str, default: bool = False) -> bool:
    """``default`` where the key is absent or null. The word "false" is neither true nor false."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointInvalid(f"config.json: {key}={value!r}; expected true or false")
    return default if value is None else value
