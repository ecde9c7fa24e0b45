"""Floors follow from bytes and operations; stored peers are found by what was measured."""

import json

import pytest

from engine.bench.floor import H200, Precision, Work, decode_floor, linear_floor, prefill_floor
from engine.bench.rows import Report, Row, best_peers
from engine.bench.shapes import LLAMA_8B, SHAPES


@pytest.mark.parametrize(
    ("rows", "adapters", "milliseconds"),
    [(1, 0, 1.11), (8, 4, 1.31), (64, 0, 2.53), (64, 64, 3.78), (256, 64, 10.75)],
)
def test_decode_floor_of_an_8b_model_at_context_590(rows, adapters, milliseconds):
    work = Work(rows=rows, context=590, adapters=adapters)
    floor = decode_floor(LLAMA_8B, work, H200, Precision())
    assert floor * 1e3 == pytest.approx(milliseconds, abs=0.01)


def test_adapters_cost_their_bytes_once_however_many_rows_share_them():
    def floor(rows: int, adapters: int) -> float:
        work = Work(rows=rows, context=16, adapters=adapters)
        return decode_floor(LLAMA_8B, work, H200, Precision())

    one = floor(32, 1) - floor(32, 0)
    assert one == pytest.approx(LLAMA_8B.lora_elements(16) * 2 / H200.bandwidth)
    assert floor(32, 16) - floor(32, 0) == pytest.approx(16 * one)
    assert floor(4, 16) == floor(4, 4)


def test_a_prefill_is_bound_by_operations():
    seconds = prefill_floor(LLAMA_8B, prompts=32, length=1024, rank=0, device=H200)
    assert 32 * 1024 / seconds == pytest.approx(55_500, rel=0.01)


def test_a_linear_is_bound_by_bytes_at_one_row_and_by_operations_at_many():
    one = linear_floor(4096, 28672, 1, H200, Precision())
    assert one * 1e6 == pytest.approx(14.2, abs=0.3)
    many = linear_floor(4096, 28672, 4096, H200, Precision())
    assert many == 2 * 4096 * 28672 * 4096 / H200.rate


def test_every_shape_writes_a_config_that_names_its_sizes():
    for shape in SHAPES.values():
        config = json.loads(json.dumps(shape.config()))
        assert config["hidden_size"] == shape.hidden_size
        assert config["architectures"] == [shape.architecture]


def test_the_best_peer_is_the_fastest_of_those_stored():
    peers = best_peers("NVIDIA H200")
    step = peers["decode", "llama-3.1-8b", "awq", 64, 64, "step", ""]
    assert (step.name, step.value) == ("SGLang 0.5.16", pytest.approx(16.7, abs=0.1))
    prefill = peers["prefill", "llama-3.1-8b", "awq", 32, 0, "input throughput", ""]
    assert prefill.name == "vLLM 0.24.0"
    assert best_peers("NVIDIA A100") == {}


def test_a_report_writes_rows_with_what_produced_them(tmp_path):
    row = Row(
        bench="decode", model="tiny", format="awq", rank=16, batch=8, adapters=4, context=512,
        metric="step", value=3.0, unit="ms", peer="other", peer_value=6.0, floor=1.5,
    )  # fmt: skip
    report = Report("NVIDIA H200", [row])
    file = report.write(tmp_path, "decode", {"torch": "2.11"})
    assert file.parent.name == "h200"
    (written,) = json.loads(file.read_text())
    assert written["value"] == 3.0
    assert {"commit", "command", "date", "versions"} <= written.keys()
    assert "0.50" in report.table()
    assert "2.00" in report.table()
