"""Modules by name, and the file that keeps which settings a packer's own code gives to each.

Runs in the packers' own environments, like ``layers``.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "names.json"
MODULES = (
    *(
        f"model.layers.{layer}.{module}"
        for layer in (0, 1, 10, 11)
        for module in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj")
    ),
    "lm_head",
)


@dataclass(frozen=True)
class Answers:
    config: Mapping[str, Any]
    settings: Mapping[str, tuple[int, int] | None]  # bits and group size; None: not quantised

    @classmethod
    def read(cls, file: Path) -> "Answers":
        facts = json.loads(file.read_text())
        settings = {name: found and tuple(found) for name, found in facts["settings"].items()}
        return cls(facts["config"], settings)


def ask(
    packer: str, config: Mapping[str, Any], answer: Callable[[str], tuple[int, int] | None]
) -> None:
    """Write the packer's answers below the directory that the command line names."""
    facts = {"config": config, "settings": {name: answer(name) for name in MODULES}}
    place = Path(sys.argv[1]) / packer
    place.mkdir(parents=True, exist_ok=True)
    (place / FILE).write_text(json.dumps(facts, indent=1) + "\n")
