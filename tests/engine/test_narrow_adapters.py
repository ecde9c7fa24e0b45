"""Adapters kept in 8 bits: the engine computes with exactly what is left of them."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from adapters.narrow import Narrow, rounded
from adapters.pack import PackedAdapter
from adapters.store import AdapterStore
from engine.adapter_layout import LaidOut
from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.bench.checkpoints import CheckpointWriter
from engine.bench.correct import check
from engine.bench.lora import lora_rows
from engine.bench.setting import Setting
from engine.bench.shapes import TINY
from engine.checkpoint import Checkpoint
from engine.composition import build_runner
from engine.config import AdapterDtype, Dtype, EngineConfig
from engine.models.spec import ModelSpec
from engine.plan import main
from engine.protocol import AdapterRef, AskReference
from kernels.lora_codes import LoraCodes
from tests.adapters.builders import config, encode, write_adapter
from tests.engine.checkpoints import Shape, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig
from tests.engine.test_sharding import MODEL, agree, every_kind, special

DTYPES = [AdapterDtype.INT8, AdapterDtype.FP8]
SHAPE = Shape(hidden=72, inner=200, heads=9, kv_heads=3, head_dim=16)  # nothing a multiple of 64


def adapters_of(spec: ModelSpec, dtype: torch.dtype) -> list[PackedAdapter]:
    """One that is A and B alone, of a rank above a block's, and those that are more."""
    return [random_adapter(spec, 19, seed=19, dtype=dtype), *special(spec)]


def logits(rig: Rig, adapters: list[PackedAdapter]) -> torch.Tensor:
    for row, packed in enumerate(adapters):
        rig.load(row, packed)
    return every_kind(rig, [-1, *range(len(adapters))])


@pytest.mark.parametrize(
    ("codes", "deterministic"), [(LoraCodes.INT8, False), (LoraCodes.E4M3, True)]
)
def test_logits_are_those_of_what_is_left_of_each_adapter(tmp_path, codes, deterministic):
    path = write_checkpoint(tmp_path, SHAPE).path
    narrow, wide = (
        Rig(path, codes=kind, deterministic=deterministic, pages=200) for kind in (codes, None)
    )
    exact = adapters_of(narrow.spec, torch.float32)
    left = [rounded(packed, Narrow(codes)) for packed in exact]
    found, expected = logits(narrow, exact), logits(wide, left)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    plain = logits(Rig(path, deterministic=deterministic, pages=200), exact)
    assert float((found - plain).abs().max()) > 1e-3


def test_a_pool_of_16_bits_holds_them_too(tmp_path):
    dtype = torch.float16
    path = write_checkpoint(tmp_path, SHAPE).path
    narrow, wide = (
        Rig(path, codes=kind, dtype=dtype, pages=200) for kind in (LoraCodes.INT8, None)
    )
    exact = adapters_of(narrow.spec, dtype)[:1]
    found = logits(narrow, exact)
    expected = logits(wide, [rounded(packed, Narrow.INT8) for packed in exact])
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)  # the wide: rounded again


def test_members_of_a_team_keep_parts_of_the_same_codes(tmp_path):
    path = write_checkpoint(tmp_path, replace(MODEL, attention_bias=True)).path
    spec = ModelSpec.read(Checkpoint(path).config)
    agree(path, 2, adapters_of(spec, torch.float32), codes=LoraCodes.INT8)


def test_a_pool_holds_almost_twice_as_many(tmp_path):
    """Counted by placing them until no page is left."""
    path = write_checkpoint(tmp_path, Shape(hidden=256, inner=512)).path

    def held(codes: LoraCodes | None) -> int:
        rig = Rig(path, codes=codes, dtype=torch.float16, page_tokens=256, pages=150)
        packed, count = random_adapter(rig.spec, 40, dtype=torch.float16), 0
        each = rig.adapters.size(packed)
        while len(rig._free) >= each:
            rig.load(count, packed)
            count += 1
        return count

    assert held(LoraCodes.INT8) >= 1.75 * held(None)


def test_the_plan_counts_what_an_8b_gains(capsys):
    told = []
    for kind in ("auto", "int8", "fp8"):
        arguments = ("--adapters", "64", "--rank", "16", "--adapter-dtype", kind)
        assert main(["llama-3.1-8b", "--context", "512", *arguments]) == 0
        told.append(capsys.readouterr().out)
    assert "64 of rank 16, 11 pages each" in told[0]
    assert "64 of rank 16 in int8, 6 pages each" in told[1]
    assert "64 of rank 16 in e4m3, 6 pages each" in told[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    CheckpointWriter(TINY, "awq", group=64).write(path)
    return path


def lone(path, **options):
    return LoneEngine(EngineConfig(model=str(path), dtype="float32", max_model_len=128, **options))


def answers(engine):
    requests = Requests()
    for i in range(6):
        ref = adapter_ref(i, 8) if i else None
        engine.submit(f"{i}", engine.random_prompt(9 + 5 * i, seed=i), 12, ref)
    for _ in engine.passes(requests):
        pass
    return requests.outputs


@pytest.mark.parametrize("kind", DTYPES)
def test_greedy_answers_are_those_of_what_is_left_given_as_it_is(checkpoint, kind, monkeypatch):
    narrow, wide = lone(checkpoint, adapter_dtype=kind), lone(checkpoint)
    made = wide._made.packed
    monkeypatch.setattr(
        wide._made, "packed", lambda digest: rounded(made(digest), Narrow(kind.codes))
    )
    assert answers(narrow) == answers(wide)
    assert check(narrow, checkpoint, rank=8).worst < 0.01
    assert check(lone(checkpoint), checkpoint, rank=8).worst < 0.01


@pytest.mark.parametrize("kind", DTYPES)
def test_a_layer_of_them_is_measured_and_its_rows_say_so(kind):
    setting = Setting(TINY, "awq", rank=8)
    narrow, wide = (
        lora_rows(of, ((5, 3),))[0] for of in (replace(setting, adapter_dtype=kind), setting)
    )
    assert (narrow.lora, wide.lora) == (kind.codes, "")
    assert narrow.floor is not None
    assert wide.floor is not None
    assert narrow.floor < 0.6 * wide.floor


@pytest.fixture
def stored(tmp_path):
    """A model, a store, and an adapter in it of one module."""
    model = write_checkpoint(tmp_path / "model", Shape()).path
    random = np.random.default_rng(0)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": encode(random.standard_normal((4, 64))),
        f"{name}.lora_B.weight": encode(random.standard_normal((64, 4))),
    }
    store = AdapterStore(tmp_path / "store")
    digest = store.put(write_adapter(tmp_path / "adapter", config(), tensors))
    options = {"model": str(model), "device": "cpu", "dtype": Dtype.FLOAT32,
               "data_dir": str(tmp_path / "data"),
               "adapter_store": str(tmp_path / "store"), "max_model_len": 64}  # fmt: skip
    return digest, options


def loaded(built, digest) -> LaidOut:
    built.adapters.request(digest)
    end = time.monotonic() + 60
    while (found := built.adapters.poll(digest)) is None and time.monotonic() < end:
        time.sleep(0.005)
    assert isinstance(found, LaidOut)
    return found


def test_what_was_made_under_another_setting_is_never_used(stored):
    digest, options = stored
    orders = [AdapterDtype.INT8, AdapterDtype.AUTO, AdapterDtype.INT8]
    found = [
        loaded(build_runner(EngineConfig(**options, adapter_dtype=kind)), digest).host
        for kind in orders
    ]
    assert torch.equal(found[0].view(torch.uint8), found[2].view(torch.uint8))
    assert not torch.equal(found[0].view(torch.uint8), found[1].view(torch.uint8))


def test_the_definition_that_a_canary_asks_for_rounds_as_the_engine_does(stored):
    digest, options = stored
    ask = AskReference("r", AdapterRef(digest, 4), [5, 9, 14, 3], [[1, 2, 3]] * 4)
    narrow, plain = (
        build_runner(EngineConfig(**options, adapter_dtype=kind)).reference(ask)
        for kind in (AdapterDtype.FP8, AdapterDtype.AUTO)
    )
    assert not narrow.error
    assert narrow.base == plain.base
    apart = np.abs(np.array(narrow.logprobs) - np.array(plain.logprobs))
    assert 1e-5 < apart.max() < 0.5


def test_what_is_no_type_of_adapters_is_refused_by_name(capsys):
    from engine.__main__ import main as engine

    with pytest.raises(SystemExit):
        engine(["serve", "--model", "m", "--adapter-dtype", "int4"])
    assert "--adapter-dtype: invalid" in capsys.readouterr().err
