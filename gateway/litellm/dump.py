"""LiteLLM's own files and answers, read exactly: numbers from their digits, never as floats.

``config.yaml``, and what its administration answers: ``GET /team/list``, ``GET
/key/list?return_full_object=true``, ``GET /user/list``. Its keys are not in there, only hashes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

Record = Mapping[str, Any]
MOST = 10**15


class DumpInvalid(ValueError):
    """Not what LiteLLM writes. The message names the file and the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    config: Record = field(default_factory=dict)
    teams: Sequence[Record] = ()
    keys: Sequence[Record] = ()
    users: Sequence[Record] = ()


def read_config(file: Path) -> Record:
    """All values as text: what YAML would guess of ``1e-06`` is not what LiteLLM does."""
    try:
        found = yaml.load(file.read_bytes(), Loader=yaml.BaseLoader)  # noqa: S506  makes text alone
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise DumpInvalid(f"{file}: {error}".replace("\n", " ")) from error
    if not isinstance(found, dict):
        raise DumpInvalid(f"{file}: a config.yaml is a mapping")
    return found


def read_list(file: Path, name: str) -> list[Record]:
    """An answer's records: a list, or an object with the list under its name."""
    try:
        found = json.loads(file.read_bytes(), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise DumpInvalid(f"{file}: {error}") from error
    if isinstance(found, dict):
        pages, page = found.get("total_pages"), found.get(name)
        if isinstance(pages, int) and pages > 1:
            raise DumpInvalid(f"{file}: page 1 of {pages}; ask with a size that takes all")
        found = page
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        hint = "; ask with return_full_object=true" if name == "keys" else ""
        raise DumpInvalid(f"{file}: a list of {name} as objects is expected{hint}")
    return found


def number(record: Record, name: str, place: str) -> Decimal | None:
    """Raises DumpInvalid."""
    value = record.get(name)
    if value is None or value in ("", "null"):
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation as error:
        raise DumpInvalid(f"{place}: {name}={value!r} is no number") from error
    if not found.is_finite() or not 0 <= found <= MOST:
        raise DumpInvalid(f"{place}: {name}={value!r} is not a number from 0 to {MOST:,}")
    return found


def texts(record: Record, name: str) -> list[str]:
    found = record.get(name) or []
    return [str(each) for each in found] if isinstance(found, list) else []


def mapping(record: Record, name: str) -> Record:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def is_true(record: Record, name: str) -> bool:
    return str(record.get(name)).lower() == "true"
