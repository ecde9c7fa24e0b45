"""The operations' benchmarks on a tiny shape: right before reported, one row a case."""

from dataclasses import replace

import pytest
import torch

from engine.bench import attention, decode, linear, lora, mixed
from engine.bench.alone import BenchmarkRefused, LoneEngine
from engine.bench.attention import attention_rows
from engine.bench.checkpoints import CheckpointWriter
from engine.bench.floor import H200
from engine.bench.held import held_rows
from engine.bench.linear import linear_rows, linears
from engine.bench.lora import lora_rows
from engine.bench.mixed import mixed_rows
from engine.bench.rows import best_peers
from engine.bench.setting import Figure, Setting, known_device, row
from engine.bench.shapes import LLAMA_8B, TINY
from engine.bench.timing import require_close
from engine.bench.vocabulary import write_tokenizer
from engine.config import EngineConfig

SETTING = Setting(TINY, "awq", rank=8)


def test_linears_are_measured_fused_for_each_number_of_rows():
    rows = linear_rows(SETTING, (1, 3), cold_bytes=0)
    assert [(r.op, r.batch) for r in rows][::2][:2] == [("qkv_proj", 1), ("qkv_proj", 3)]
    assert [r.metric for r in rows][:2] == ["time", "time, parts not summed"]
    assert len(rows) == 2 * 2 * len(linears(TINY))
    assert all(r.value > 0 and r.floor for r in rows)


def test_an_act_order_weight_is_right_too():
    setting = replace(SETTING, format="gptq-act-order")
    assert len(linear_rows(setting, (2,), cold_bytes=0)) == 8


def test_a_wrong_product_is_not_reported(monkeypatch):
    right = linear.matmul_w4a16
    monkeypatch.setattr(linear, "matmul_w4a16", lambda x, w: right(x, w) * 1.01)
    with pytest.raises(BenchmarkRefused, match="qkv_proj, 1 rows"):
        linear_rows(SETTING, (1,), cold_bytes=0)


def test_fp16_has_no_linears_of_ours():
    with pytest.raises(BenchmarkRefused, match="fp16"):
        linear_rows(replace(SETTING, format="fp16"))


def test_the_linears_names_are_those_of_the_stored_peers():
    peers = best_peers("NVIDIA H200")
    for name in linears(LLAMA_8B):
        figure = Figure(
            bench="linear", op=name, metric="time", value=1.0, unit="us", batch=64
        )  # fmt: skip
        assert row(Setting(LLAMA_8B, "awq"), figure).peer_value
    assert ("mixed", "llama-3.1-8b", "awq", 512, 64, "output throughput", "") in peers


def test_adapters_of_a_layer_are_compared_with_their_own_factors(monkeypatch):
    rows = lora_rows(SETTING, ((1, 1), (5, 3)))
    assert [(r.batch, r.adapters, r.rank) for r in rows] == [(1, 1, 8), (5, 3, 8)]
    right = lora.lora_addend
    monkeypatch.setattr(lora, "lora_addend", lambda h, *rest: right(1.2 * h, *rest))
    with pytest.raises(BenchmarkRefused, match="adapter 0"):
        lora_rows(SETTING, ((1, 1),))


def test_attention_is_compared_with_its_definition(monkeypatch):
    rows = attention_rows(SETTING, ((3, 70),), ((2, 65),))
    assert [r.op for r in rows] == ["paged_decode at 70", "ragged_prefill at 65"]
    assert [r.batch for r in rows] == [3, 2]
    assert all(r.floor for r in rows)
    monkeypatch.setattr(attention, "ragged_prefill", lambda *given, out, **kw: out.zero_())
    with pytest.raises(BenchmarkRefused, match="ragged_prefill"):
        attention_rows(SETTING, (), ((1, 65),))


def test_attention_over_pages_of_8_bits_is_too_and_its_rows_say_so():
    rows = attention_rows(replace(SETTING, narrow_kv=True), ((3, 70),), ((2, 65),))
    wide = attention_rows(SETTING, ((3, 70),), ())
    assert [r.kv for r in rows] == ["fp8", "fp8"]
    assert rows[0].floor is not None
    assert wide[0].floor is not None
    assert rows[0].floor < 0.6 * wide[0].floor


@pytest.mark.parametrize("fmt", ["fp8", "fp8-block", "int8"])
def test_linears_of_8_bits_are_measured_too(fmt):
    rows = linear_rows(replace(SETTING, format=fmt), (3,), cold_bytes=0)
    assert len(rows) == 8
    assert all(r.format == fmt and r.floor for r in rows)


def test_a_nan_is_not_close():
    with pytest.raises(BenchmarkRefused):
        require_close("x", torch.tensor([float("nan")]), torch.ones(1))


def test_requests_at_once_all_get_their_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(mixed, "SHORTEST", 2)
    monkeypatch.setattr(mixed, "LONGEST", 5)
    CheckpointWriter(TINY, "awq", group=64).write(tmp_path)
    engine = LoneEngine(EngineConfig(model=str(tmp_path), max_model_len=64, max_num_seqs=4))
    rows = mixed_rows(engine, SETTING, ((6, 2),), prompt=9)
    assert rows[0].value > 0
    assert (rows[0].batch, rows[0].adapters, rows[0].unit) == (6, 2, "tok/s")


def test_held_steps_stand_beside_free_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "PROMPT", 5)
    monkeypatch.setattr(decode, "LONG", 12)
    monkeypatch.setattr(decode, "SHORT", 2)
    CheckpointWriter(TINY, "awq", group=64).write(tmp_path)
    write_tokenizer(tmp_path / "tokenizer.json", TINY.vocab_size)
    engine = LoneEngine(EngineConfig(model=str(tmp_path), max_model_len=64, max_num_seqs=4))
    rows = held_rows(engine, SETTING, ((3, 0), (2, 1)))
    assert [(r.metric, r.batch) for r in rows] == [
        ("free step", 3), ("held step", 3), ("free step", 2), ("held step", 2),
    ]  # fmt: skip
    assert all(r.value > 0 for r in rows)


def test_only_a_device_with_known_ceilings_has_a_floor():
    assert known_device("NVIDIA H200") is H200
    assert known_device("cpu") is None
    assert linear_rows(replace(SETTING, device=None), (1,), cold_bytes=0)[0].floor is None
