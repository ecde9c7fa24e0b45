"""``loratorio bench fairness|churn|prefix`` on a model of two layers, and in simulated time."""

import json
from pathlib import Path

import pytest

from engine.bench.cli import main
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

SHAPE = Shape(hidden=128, inner=160, heads=4, kv_heads=2, head_dim=32, layers=2, vocab=256)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("bench"), SHAPE, Layout("gptq", 32)).path)


def figures(folder: Path) -> dict[str, float]:
    (file,) = folder.rglob("*.json")
    return {row["metric"]: row["value"] for row in json.loads(file.read_text())}


def test_fairness_in_simulated_time_reports_both_limits(tmp_path: Path) -> None:
    flags = ["--seconds", "12", "--input-len", "20", "--output-len", "10", "--max-num-seqs", "8"]
    assert main(["fairness", "--simulate", "cpu", *flags, "--out", str(tmp_path)]) == 0
    found = figures(tmp_path)
    alone = found["others alone: P95 to first token"]
    flooded = found["others beside a flood: P95 to first token"]
    assert found["slower by the flood (limit 2)"] == pytest.approx(flooded / alone)
    assert found["throughput of first come first served (at least 0.95)"] >= 0.9
    assert found["bound of the gap in service of two who always wait"] == 2 * 20 + 4096


def test_three_prompts_with_one_beginning_hold_28_pages(model: str, tmp_path: Path) -> None:
    flags = [
        "--model",
        model,
        "--input-len",
        "20",
        "--rounds",
        "1",
        "--max-num-seqs",
        "4",
        "--block-size",
        "16",
    ]
    flags += ["--pool-bytes", str(100 << 16), "--out", str(tmp_path)]
    assert main(["prefix", *flags]) == 0
    found = figures(tmp_path)
    assert (found["pages of three with one beginning"], found["pages of three apart"]) == (28, 48)


def test_churn_loads_each_adapter_once_where_all_fit(model: str, tmp_path: Path) -> None:
    flags = ["--model", model, "--adapters", "5", "--rank", "4", "--input-len", "8"]
    flags += ["--output-len", "3", "--max-num-seqs", "4", "--pool-bytes", str(100 << 16)]
    assert main(["churn", *flags, "--out", str(tmp_path)]) == 0
    found = figures(tmp_path)
    assert (found["loads, first time"], found["loads, second time"]) == (5, 0)
    assert found["adapters in the pool"] == 5


def test_what_cannot_be_simulated_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["churn", "--simulate", "cpu"])
    assert "only fairness can be simulated" in capsys.readouterr().err
