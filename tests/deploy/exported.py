"""What programs of ours export, and what is asked of it.

A series is exported also where nothing was counted in it yet.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from engine.metrics import EngineMetrics
from gateway.metrics import Metrics

TYPE = re.compile(r"^# TYPE (\S+) (\w+)$", re.MULTILINE)
SAMPLE = re.compile(r"^([a-z_]\w*(?::\w+)?)(?:\{(.*)\})? \S+$", re.MULTILINE)
NAME = re.compile(r"(?:vllm:|loratorio_)\w+")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
MATCHED = re.compile(r"\w\{([^}]*)\}")
QUERY = re.compile(r"^\s*query: (.+)$", re.MULTILINE)
OF_PROMETHEUS = {"instance", "job", "namespace", "pod"}  # it adds them itself
DEPLOY = Path(__file__).parents[2] / "deploy"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def exported_names() -> set[str]:
    pages = EngineMetrics(10).text() + Metrics().text().decode()
    return {
        f"{name}{suffix}"
        for name, kind in TYPE.findall(pages)
        for suffix in SUFFIXES.get(kind, ("",))
    }


def expressions() -> list[str]:
    """All that Grafana, Prometheus and autoscalers of ours ask."""
    boards = [json.loads(file.read_text()) for file in (DEPLOY / "grafana").rglob("*.json")]
    panels = [panel for board in boards for panel in board["panels"]]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for file in (DEPLOY / "kubernetes").rglob("*.yaml"):
        asked += QUERY.findall(file.read_text())
    return asked


@dataclass(frozen=True, slots=True)
class Scraped:
    """What pages of running programs have: of every series, the labels that its samples carry;
    None where it has no sample yet."""

    labels: dict[str, set[str] | None]

    @classmethod
    def of(cls, pages: str) -> Self:
        found: dict[str, set[str] | None] = {}
        for name, kind in TYPE.findall(pages):
            for suffix in SUFFIXES.get(kind, ("",)):
                found.setdefault(f"{name}{suffix}", None)
        for name, said in SAMPLE.findall(pages):
            found[name] = (found.get(name) or set()) | set(re.findall(r'(\w+)="', said))
        return cls(found)

    def missing(self, expression: str) -> set[str]:
        """Series that nobody exports, and labels that none of the expression's series has; of
        those without a sample nothing is known."""
        names = set(NAME.findall(expression))
        absent = names - self.labels.keys()
        known = [has for name in names - absent if (has := self.labels[name]) is not None]
        if absent or len(known) < len(names):
            return absent
        asked: set[str] = set()
        for group in GROUPED.findall(expression):
            asked |= set(re.findall(r"\w+", group))
        for matchers in MATCHED.findall(expression):
            asked |= set(re.findall(r"(\w+)\s*(?:!=|!~|=~?)\s*\"", matchers))
        return asked - set().union(*known) - OF_PROMETHEUS
