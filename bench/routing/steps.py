"""How long an engine takes, as the H200 was measured: passes, prompts, and a cold adapter."""

import json
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

RECORDED = Path(__file__).parents[1] / "results" / "h200"
DECODE = "decode-llama-3.1-8b-awq-r16.json"
PREFILL = "prefill-llama-3.1-8b-awq-r16.json"
CHURN = "churn-llama-3.1-8b.json"


@dataclass(frozen=True, slots=True)
class StepTimes:
    sequences: tuple[int, ...]  # ascending
    seconds: tuple[float, ...]  # of a pass in which so many decode, each with one of many adapters
    prompt_tokens_per_s: float
    cold_s: float  # what an adapter that is not on the device adds
    kv_tokens: int  # that fit beside a thousand adapters

    @classmethod
    def recorded(cls, folder: Path = RECORDED) -> Self:
        steps: dict[int, float] = {}
        for row in _rows(folder / DECODE):
            if row["metric"] == "step":  # of equal counts of sequences, the one with most adapters
                steps[row["batch"]] = max(steps.get(row["batch"], 0.0), row["value"] / 1000)
        counts = sorted(steps)
        return cls(
            tuple(counts),
            tuple(steps[count] for count in counts),
            min(row["value"] for row in _rows(folder / PREFILL)),
            _value(folder / CHURN, "a cold adapter alone adds to its first token (limit 10)") / 1e3,
            int(_value(folder / CHURN, "tokens of KV left")),
        )

    def step_s(self, sequences: int) -> float:
        """Between two that were measured, on the line; beyond the last, in proportion."""
        place = bisect_left(self.sequences, sequences)
        if place == len(self.sequences):
            return self.seconds[-1] * sequences / self.sequences[-1]
        if place == 0 or self.sequences[place] == sequences:
            return self.seconds[place]
        low, high = self.sequences[place - 1], self.sequences[place]
        share = (sequences - low) / (high - low)
        return self.seconds[place - 1] * (1 - share) + self.seconds[place] * share


def _rows(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
    return rows


def _value(file: Path, metric: str) -> float:
    return next(float(row["value"]) for row in _rows(file) if row["metric"] == metric)
