"""Typed reads from ``config.json``. A refusal names the key and what was found there."""

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


def flag(config: Config, key: str) -> bool:
    return bool(config.get(key) or False)
