"""``loratorio bench`` of what tenants do to each other, on two layers and in simulated time."""

import json
from pathlib import Path

import pytest
import torch

from engine.bench.alone import LoneEngine, adapter_ref
from engine.bench.cli import main
from engine.config import EngineConfig
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

pytestmark = pytest.mark.slow

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
    assert found["bound of the gap in service of two who always wait"] == 2 * (2 * 8 * 10) + 4096


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
    flags = ["--model", model, "--adapters", "3", "--rank", "4", "--input-len", "8"]
    flags += ["--output-len", "3", "--max-num-seqs", "4", "--pool-bytes", str(200 << 16)]
    flags += ["--switches", "3", "--switch-seconds", "0.5", "--rate", "24"]
    assert main(["churn", *flags, "--out", str(tmp_path)]) == 0
    found = figures(tmp_path)
    assert (found["loads, first time"], found["loads, second time"]) == (3, 0)
    assert found["adapters in the pool"] == 3
    assert found["others while cold adapters come: P99 between tokens"] > 0
    assert found["requests that failed (limit 0)"] == 0
    assert found["answers of the version they name"] == 16  # 4 of each of 4 versions
    assert found["answers of another version (limit 0)"] == 0
    assert found["pages of retired versions (limit 0)"] == 0


def test_benches_that_are_named_together_share_an_engine(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", model, "--input-len", "8", "--output-len", "2", "--max-num-seqs", "2"]
    flags += ["--seconds", "1", "--long-len", "100", "--pool-bytes", str(200 << 16)]
    assert main(["batching", "fairness", *flags, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("starting the engine") == 1
    rows = {file.name: json.loads(file.read_text()) for file in tmp_path.rglob("*.json")}
    metrics = {row["metric"]: row["value"] for found in rows.values() for row in found}
    assert len(rows) == 2
    assert metrics["continuous batching beside static batches"] > 0
    assert metrics["tokens of the long prompt"] == 100
    assert metrics["others while it enters: P99 between tokens (limit 30)"] > 0
    assert metrics["long prompt beside others"] > 0


def test_adapters_that_are_poured_differ_and_come_out_alike_again(model: str) -> None:
    engine = LoneEngine(EngineConfig(model=model, max_num_seqs=2, pool_bytes=200 << 16), pour=2)
    refs = [adapter_ref(number, 4) for number in range(3)]

    def hosts() -> list[torch.Tensor]:
        engine.fetch(refs[:2])
        return [engine._host.poll(ref.digest).host.clone() for ref in refs[:2]]

    first = hosts()
    assert not torch.equal(*first)
    engine.fetch(refs[2:])
    assert not engine._host.holds(refs[0].digest)  # there is room for two
    assert all(map(torch.equal, first, hosts()))


def test_what_cannot_be_simulated_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["churn", "--simulate", "cpu"])
    assert "only fairness can be simulated" in capsys.readouterr().err
