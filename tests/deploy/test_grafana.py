"""Dashboards read what the programs export: a renamed metric would leave a panel empty for ever."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.exported import Scraped, exported_names

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
BOARDS = sorted(FOLDER.glob("*.json"))
NAME = re.compile(r"(?:vllm:|loratorio_)\w+")
# What vLLM's own dashboard for Grafana reads: its panels show our engines too.
VLLM_DASHBOARD = {
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:inter_token_latency_seconds_count",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(board) for target in panel["targets"]]


@pytest.mark.parametrize("file", BOARDS, ids=lambda file: file.stem)
def test_every_panel_reads_what_is_exported(file: Path) -> None:
    board, exported = json.loads(file.read_text()), exported_names()
    for expression in expressions(board):
        read = set(NAME.findall(expression))
        assert read, expression
        assert read <= exported


@pytest.mark.parametrize("file", BOARDS, ids=lambda file: file.stem)
def test_a_board_is_whole(file: Path) -> None:
    """Ids are its own, nothing lies on something else, and expressions close what they open."""
    board = json.loads(file.read_text())
    assert board["uid"] == file.stem
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for expression in expressions(board):
        for left, right in ("()", "[]", "{}"):
            assert expression.count(left) == expression.count(right), expression


def test_a_label_that_no_sample_has_is_missed() -> None:
    """The test of whole servers (tests/e2e/test_fleet.py) holds every expression to their pages."""
    scraped = Scraped.of(
        '# TYPE loratorio_x counter\nloratorio_x_total{a="1",b="2"} 3.0\n'
        "# TYPE loratorio_x_total counter\n"
        "# TYPE vllm:y gauge\nvllm:y 1.0\n# TYPE loratorio_z gauge\n"
    )
    assert scraped.missing('sum by (a, pod) (rate(loratorio_x_total{b="2"}[5m]))') == set()
    assert scraped.missing('sum by (c) (rate(loratorio_x_total{d!="2"}[5m]))') == {"c", "d"}
    assert scraped.missing("max by (a) (vllm:y)") == {"a"}
    assert scraped.missing("max by (a) (loratorio_z)") == set()  # nothing is known of it
    assert scraped.missing("loratorio_w / vllm:y") == {"loratorio_w"}


def test_vllms_own_dashboard_finds_its_metrics() -> None:
    assert exported_names() >= VLLM_DASHBOARD
