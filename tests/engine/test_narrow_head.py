"""A head in int8 is near the one it came from, and says how near; adapters and plans go with it."""

import json

import pytest
import torch

from engine.bench.shapes import LLAMA_8B
from engine.composition import build_runner
from engine.config import EngineConfig, HeadDtype
from engine.layers.eight import W8
from engine.layers.embedding import Head
from engine.layers.narrow_head import NarrowHead
from engine.plan import main
from engine.stored_weights import narrow_head_error, of_checkpoint, of_shape, with_narrow_head
from kernels.w8_weight import dequantize_w8
from tests.engine.checkpoints import Shape, write_checkpoint
from tests.engine.rig import Rig, chunk


def weight(rows=300, columns=64):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    values[7] *= 100
    values[8] = 0
    return values


def test_each_row_is_scaled_by_its_own_largest_value_and_the_error_is_said():
    dense = weight()
    found = NarrowHead.of(dense)
    back = dequantize_w8(found.weight, dtype=torch.float32)
    assert bool(((back - dense).abs() <= dense.abs().amax(1, keepdim=True) / 127 * 0.501).all())
    off = float((back - dense).norm() / dense.norm())
    assert found.error == pytest.approx(off, rel=1e-4)
    assert off <= found.worst < 0.02
    assert f"{off:.2%}" in str(found)


def test_logits_of_a_gpus_head_are_float32_and_near():
    dense, x = weight(), torch.randn(3, 64).bfloat16()
    head = Head(W8([NarrowHead.of(dense).weight], dtype=torch.bfloat16))
    logits, out = head(x), torch.empty(3, 300)
    assert head(x, out) is out
    assert torch.equal(out, logits)
    assert logits.dtype == torch.float32
    expected = x.float() @ dense.t()
    assert float((logits - expected).norm() / expected.norm()) < 0.02


@pytest.mark.parametrize("tied", [False, True])
def test_an_engine_computes_with_it(tmp_path, tied):
    path = write_checkpoint(tmp_path, Shape(tied=tied)).path
    narrow, wide = Rig(path, narrow_head=True), Rig(path)
    tokens = [5, 9, 14, 3, 60]
    found, expected = (rig.logits([chunk(tokens, rig.pages(16))]) for rig in (narrow, wide))
    off = float((found - expected).norm() / expected.norm())
    assert 1e-4 < off < 0.03
    built = build_runner(
        EngineConfig(model=str(path), device="cpu", dtype="float32", head_dtype=HeadDtype.INT8)
    )
    assert built.num_pages > 0


@pytest.mark.parametrize("tied", [False, True])
def test_the_plan_says_what_it_costs(tmp_path, tied, capsys):
    path = write_checkpoint(tmp_path, Shape(tied=tied)).path
    spec, weights = of_checkpoint(path)
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    dense = Rig(path).model.embedding.table if tied else _stored(path, name)
    error = narrow_head_error(path, spec)
    assert error == pytest.approx(NarrowHead.of(dense).error, rel=1e-3)
    assert main([str(path), "--context", "16", "--head-dtype", "int8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["head_error"] == error
    assert told["weights_bytes"] == with_narrow_head(spec, weights).nbytes


def _stored(path, name):
    from engine.checkpoint import Checkpoint

    return Checkpoint(path).tensor(name)


def test_an_8b_saves_half_its_head():
    spec, weights = of_shape(LLAMA_8B, "awq")
    saved = weights.nbytes - with_narrow_head(spec, weights).nbytes
    assert saved == spec.vocab_size * (spec.hidden_size - 4)
