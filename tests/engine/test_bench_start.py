"""``loratorio bench start`` reads what an engine's log says of its start, and stores it."""

import json

import pytest

from bench import report
from engine.bench.start import NotStarted, Start, main, rows, start
from engine.timeline import Timeline


def test_what_a_timeline_tells_is_read_back(caplog):
    times = iter([1.5, 4.0])
    timeline = Timeline(began=0.0, clock=lambda: next(times))
    timeline.mark("opened checkpoint and device")
    timeline.mark("67 kernels")
    with caplog.at_level("INFO"):
        timeline.tell()
    found = Start.read("cold", f"INFO engine.timeline: {caplog.messages[0]}\n")
    phases = {"opened checkpoint and device": 1.5, "67 kernels": 2.5}
    assert found == Start("cold", 4.0, phases)
    assert Start.read("cold", "INFO engine: ready unix:/x 7 pages") is None


def test_each_start_is_rows_of_the_whole_and_its_phases():
    cold = Start("cold", 9.0, {"imports": 2.0, "67 kernels": 7.0})
    cached = Start("cached", 3.0, {"imports": 2.0, "60 kernels": 1.0})
    found = rows([cold, cached], "llama-3.1-8b", "awq", members=2)
    assert [(row.op, row.metric, row.value, row.unit) for row in found] == [
        ("cold", "from nothing to serving", 9.0, "s"),
        ("cold", "imports", 2.0, "s"),
        ("cold", "67 kernels", 7.0, "s"),
        ("cached", "from nothing to serving", 3.0, "s"),
        ("cached", "imports", 2.0, "s"),
        ("cached", "60 kernels", 1.0, "s"),
    ]
    assert {(row.bench, row.model, row.members) for row in found} == {("start", "llama-3.1-8b", 2)}


@pytest.mark.slow
def test_two_starts_are_written_as_results_that_a_report_shows(tmp_path, capsys):
    flags = ["--shape", "tiny", "--cache", str(tmp_path), "--out", str(tmp_path / "results")]
    assert main([*flags, "--commit", "abc1234", "--", "--device", "cpu", "--threads", "1"]) == 0
    file = tmp_path / "results" / "cpu" / "start-tiny-awq.json"
    assert capsys.readouterr().out.splitlines()[-1] == str(file)
    found = json.loads(file.read_text())
    assert {(row["commit"], row["device"], row["unit"]) for row in found} == {
        ("abc1234", "cpu", "s")
    }
    for kernels in ("cold", "cached"):
        took = {row["metric"]: row["value"] for row in found if row["op"] == kernels}
        assert {"imports", "weights", "the rest"} <= took.keys()
        whole = took.pop("from nothing to serving")
        assert whole == pytest.approx(sum(took.values()), abs=0.1)
    shown = report.render(tmp_path / "results")
    assert "| tiny | cold | cached | unit |" in shown


def test_flags_that_no_engine_takes_are_told_before_anything_is_written(tmp_path, capsys):
    cache = ["--shape", "tiny", "--cache", str(tmp_path)]
    assert main([*cache, "--", "--max-model-len", "1"]) == 2
    assert "max_model_len=1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*cache, "--", "--no-such-flag"])
    assert not list(tmp_path.iterdir())


def test_an_engine_that_does_not_start_says_why(tmp_path):
    with pytest.raises(NotStarted, match="no such directory"):
        start(tmp_path / "none", tmp_path, "cold", ())
