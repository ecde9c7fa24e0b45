"""What ``loratorio inspect`` found out about a path, for people and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 20  # reasons or warnings spelled out for people; JSON has them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Served means: an engine loads it. ``reasons`` says why not, and is empty if it is."""

    kind: str  # "checkpoint", "adapter", or what else it is
    path: str
    facts: dict[str, str | int]  # in the order they are shown in
    reasons: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def served(self) -> bool:
        return not self.reasons

    def as_json(self) -> str:
        record = {
            "path": self.path,
            "kind": self.kind,
            "served": self.served,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            **{name.replace(" ", "_"): value for name, value in self.facts.items()},
        }
        return json.dumps(record, indent=2, ensure_ascii=False)

    def as_text(self) -> str:
        width = max([len(name) for name in self.facts] or [0]) + 2
        lines = [f"{self.path}: {self.kind}"]
        lines += [f"  {name.ljust(width)}{value}" for name, value in self.facts.items()]
        lines += _listed("warning", self.warnings)
        lines += ["served: yes"] if self.served else ["served: no", *_listed("why", self.reasons)]
        return "\n".join(lines)


def _listed(label: str, texts: Sequence[str]) -> list[str]:
    lines = [f"  {label}: {text}" for text in texts[:SHOWN]]
    more = len(texts) - SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines


def amount(nbytes: int) -> str:
    """Bytes for people."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
