"""``loratorio bench start`` reads what an engine's log says of its start."""

import pytest

from engine.bench.checkpoints import CheckpointWriter
from engine.bench.shapes import SHAPES
from engine.bench.start import NotStarted, Start, start, table
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


def test_starts_stand_beside_each_other():
    cold = Start("cold", 9.0, {"imports": 2.0, "67 kernels": 7.0})
    cached = Start("cached", 3.0, {"imports": 2.0, "60 kernels": 1.0})
    rows = [row.split("  ") for row in table([cold, cached]).splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["cold", "cached"],
        ["imports", "2.00 s", "2.00 s"],
        ["67 kernels", "7.00 s"],
        ["60 kernels", "1.00 s"],
        ["from nothing to serving", "9.00 s", "3.00 s"],
    ]


@pytest.mark.slow
def test_an_engine_is_started_and_ended(tmp_path):
    CheckpointWriter(SHAPES["tiny"], "awq").write(tmp_path / "model")
    found = start(tmp_path / "model", tmp_path, "cold", ("--device", "cpu"))
    assert {"imports", "weights", "the rest"} <= found.phases.keys()
    assert found.seconds == pytest.approx(sum(found.phases.values()), abs=0.1)


def test_an_engine_that_does_not_start_says_why(tmp_path):
    with pytest.raises(NotStarted, match="no such directory"):
        start(tmp_path / "none", tmp_path, "cold", ())
