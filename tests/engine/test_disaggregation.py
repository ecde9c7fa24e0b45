"""The benchmark of disaggregation, in simulated time: its figures follow from its load."""

import argparse
import json
from pathlib import Path

import pytest

from engine.bench.disaggregation import figures_of, main, traffic
from engine.bench.handed import Answered, Run
from engine.bench.simulated_pair import simulate

SMALL = [
    "--simulate", "gpu", "--seconds", "1", "--chat-rate", "10", "--document-rate", "2",
    "--chat-output", "64", "--document-output", "32", "--link-gbs", "20", "--commit", "test",
]  # fmt: skip


def test_decodes_are_even_where_another_engine_computes_the_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/disaggregation-simulated.json")
    found = {row["metric"]: row["value"] for row in json.loads(path.read_text())}
    assert found["handed over"] == 1.0
    assert found["between tokens, P99, disaggregated to co-located (limit 0.5)"] < 0.5
    assert found["goodput, disaggregated to co-located (at least 0.9)"] > 0.9
    assert "handed over" in capsys.readouterr().out


def options(**changes: object) -> argparse.Namespace:
    given = {
        "simulate": "gpu", "max_num_seqs": 64, "batched_tokens": 2048, "link_gbs": 20.0,
        "least_tokens": 256, "queue_tokens": 65_536, "chat_rate": 5.0, "chat_input": 100,
        "chat_output": 8, "document_rate": 2.0, "document_input": 2000, "document_output": 8,
    }  # fmt: skip
    return argparse.Namespace(**{**given, **changes})


def test_short_prompts_and_those_for_which_no_giver_is_free_stay_with_the_taker() -> None:
    wanted = traffic(options(), 2.0, seed=0)
    run = simulate(options(), wanted, hand=True)
    assert all(one.handed == (one.arrival.tenant == "document") for one in run.answered)
    assert all(len(one.gaps) == one.arrival.answer - 1 for one in run.answered)
    crowded = options(queue_tokens=1, document_rate=40.0)
    run = simulate(crowded, traffic(crowded, 1.0, seed=0), hand=True)
    documents = [one.handed for one in run.answered if one.arrival.tenant == "document"]
    assert 0 < sum(documents) < len(documents)


def test_nothing_is_reported_of_a_run_in_which_a_request_failed() -> None:
    arrival = traffic(options(), 2.0, seed=0)[0]
    whole = Answered(arrival, handed=True, first_s=0.1, ended_s=1.0, gaps=[0.01] * 7)
    runs = {"co-located": Run([whole], 1.0), "disaggregated": Run([Answered(arrival, True)], 1.0)}
    with pytest.raises(RuntimeError, match="disaggregated: 1 of 1 requests failed"):
        figures_of(runs, ttft_s=2.0)
    both = {way: Run([whole], 1.0) for way in runs}
    found = {name: value for name, value, _ in figures_of(both, ttft_s=0.05)}
    assert found["co-located: goodput"] == 0
    assert found["co-located: requests"] == 1
