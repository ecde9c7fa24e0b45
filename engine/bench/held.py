"""Decode steps of sequences whose answers a grammar holds, beside those of free ones.

Everyone writes a JSON array of objects that is longer than what is measured: strings, numbers and
choices, whose masks differ from row to row and from step to step.
"""

import json
import statistics
from collections.abc import Sequence

from engine.bench.alone import LoneEngine
from engine.bench.decode import PROMPT, steady_steps
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row

MIXES = ((1, 0), (8, 0), (64, 0), (64, 16), (256, 0))
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["person", "place", "thing"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "seen": {"type": "string", "format": "date"},
    },
    "required": ["name", "kind", "count", "tags", "seen"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 1000}
GRAMMAR = json.dumps({"grammars": [{"json_schema": SCHEMA}]})


def held_rows(
    engine: LoneEngine, setting: Setting, mixes: Sequence[tuple[int, int]] = MIXES
) -> list[Row]:
    """Median of a decode step, free and held, for each (rows, adapters)."""
    found = []
    for batch, adapters in mixes:
        for metric, grammar in (("free step", None), ("held step", GRAMMAR)):
            steps = steady_steps(engine, batch, adapters, setting.rank, grammar=grammar)
            figure = Figure(
                bench="held", metric=metric, value=statistics.median(steps) * 1e3, unit="ms",
                batch=batch, adapters=adapters, context=PROMPT,
            )  # fmt: skip
            found.append(row(setting, figure))
    return found
