"""Every alert, just under and just over its threshold: what promtool would do with the same files.

The metrics that the rules read are those the programs export: a renamed one would never fire.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.exported import exported_names
from tests.deploy.promql import Evaluate, Labels, Parser, Series, Storage

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
TESTS = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    return float(text[:-1]) * UNITS[text[-1]]


def values(text: str) -> list[float]:
    """promtool's short way: ``a+bxn`` is a, a+b, … n more times; ``axn`` is a, n more times."""
    found: list[float] = []
    for part in text.split():
        match = re.fullmatch(r"([\d.]+)(?:\+([\d.]+))?(?:x(\d+))?", part)
        assert match, part
        start, step, times = float(match[1]), float(match[2] or 0), int(match[3] or 0)
        found += [start + step * i for i in range(times + 1)]
    return found


def series(written: dict[str, str], interval: float) -> Series:
    name, _, rest = written["series"].partition("{")
    labels = re.findall(r'(\w+)="([^"]*)"', rest)
    samples = tuple((i * interval, value) for i, value in enumerate(values(written["values"])))
    return Series(name, frozenset(labels), samples)


def firing(expression: Evaluate, patience: float, storage: Storage, until: float) -> set[Labels]:
    """Evaluated once a minute: what was true long enough without a gap."""
    since: dict[Labels, float] = {}
    for minute in range(int(until // 60) + 1):
        now = minute * 60.0
        vector = expression(storage, now)
        assert isinstance(vector, dict)
        since = {labels: since.get(labels, now) for labels in vector}
    return {labels for labels, began in since.items() if until - began >= patience}


@pytest.mark.parametrize("case", TESTS, ids=lambda case: case["name"])
def test_fires_when_and_only_when_it_should(case: dict[str, Any]) -> None:
    interval = seconds(case["interval"])
    storage = Storage(tuple(series(written, interval) for written in case["input_series"]))
    for asked in case["alert_rule_test"]:
        rule = RULES[asked["alertname"]]
        fired = firing(
            Parser(rule["expr"]).parse(),
            seconds(rule.get("for", "0m")),
            storage,
            seconds(asked["eval_time"]),
        )
        found = [dict(labels) | rule["labels"] for labels in fired]
        assert found == [alert["exp_labels"] for alert in asked["exp_alerts"]]


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    asked = [alert for case in TESTS for alert in case["alert_rule_test"]]
    assert {alert["alertname"] for alert in asked if alert["exp_alerts"]} == RULES.keys()


def test_every_metric_of_the_rules_is_exported() -> None:
    exported = exported_names()
    for rule in RULES.values():
        read = set(re.findall(r"(?:vllm:|loratorio_)\w+", rule["expr"]))
        assert read <= exported
