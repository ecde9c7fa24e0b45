"""Weights of one byte a number, with scales of every shape: read, or refused by name."""

import json

import pytest
import torch

from engine.composition import build_runner
from engine.config import EngineConfig
from engine.errors import CheckpointInvalid
from engine.quant.bytewise import Float8, unpack_bytes
from engine.quant.configs import read_scheme
from engine.quant.schemes import Claim
from engine.stored_weights import of_checkpoint
from tests.engine.bytes_checkpoints import BYTE_LAYOUTS, ByteLayout, byte_module, write_bytes
from tests.engine.checkpoints import save
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig, chunk

MODULE = "model.layers.3.self_attn.q_proj"
TOKENS = [5, 9, 14, 3, 60]


def made(size, layout):
    parts, dense = byte_module(*size, layout, torch.Generator().manual_seed(0))
    claim = read_scheme({"config.json": layout.config}).claim(MODULE)
    assert claim is not None
    return parts, dense, claim


@pytest.mark.parametrize("layout", BYTE_LAYOUTS, ids=str)
@pytest.mark.parametrize("size", [(256, 192), (160, 72)], ids=str)
def test_a_layout_unpacks_to_its_dense_weight(size, layout):
    tensors, dense, claim = made(size, layout)
    assert torch.equal(unpack_bytes(MODULE, tensors, size, claim).dense(), dense)


@pytest.mark.parametrize("layout", BYTE_LAYOUTS, ids=str)
def test_a_model_equals_its_dequantised_one_and_adapters_go_on_top(tmp_path, layout):
    stored, dense, config = write_bytes(tmp_path / "q", layout)
    save(tmp_path / "d", dense, {k: v for k, v in config.items() if k != "quantization_config"})
    found, expected = (_logits(tmp_path / name) for name in "qd")
    assert torch.equal(found, expected)
    assert stored.keys() != dense.keys()


def _logits(path):
    rig = Rig(path)
    rig.load(0, random_adapter(rig.spec, 4, seed=0))
    chunks = [chunk(TOKENS, rig.pages(16), adapter=0), chunk(TOKENS, rig.pages(16))]
    logits = rig.logits(chunks)
    assert not torch.equal(logits[:5], logits[5:])
    return logits


@pytest.mark.parametrize("layout", BYTE_LAYOUTS, ids=str)
def test_scales_without_values_are_planned_and_refused(tmp_path, layout):
    stored, _, config = write_bytes(tmp_path / "q", layout)
    name = next(name for name in stored if "weight_scale" in name)
    save(tmp_path / "q", {**stored, name: stored[name][..., :0]}, config)
    assert of_checkpoint(tmp_path / "q")[1].nbytes > 0
    with pytest.raises(CheckpointInvalid, match="weight_scale"):
        Rig(tmp_path / "q")


PER_CHANNEL = ByteLayout("float", "channel")


@pytest.mark.parametrize(
    ("part", "tensor", "said"),
    [
        ("weight", torch.zeros(8, 64).to(torch.float8_e4m3fn), "[8, 64]"),
        ("weight", torch.full((8, 128), float("nan")).to(torch.float8_e4m3fn), "not finite"),
        ("weight", torch.zeros((8, 128), dtype=torch.int8), "float of 8 bits"),
        ("weight_scale", None, "no weight_scale"),
        ("weight_scale", torch.ones(3), "weight_scale [3]"),
        ("weight_scale", torch.full((8, 1), float("inf")), "not finite"),
        ("weight_scale", torch.full((8, 1), 1e9), "weights up to"),
        ("weight_scale_inv", torch.ones(1), "weight_scale and weight_scale_inv"),
        ("weight_zero_point", torch.ones((8, 1), dtype=torch.int8), "weight_zero_point"),
    ],
)
def test_a_tensor_that_is_not_as_expected_is_named(part, tensor, said):
    tensors, _, claim = made((128, 8), PER_CHANNEL)
    tensors = {name: t for name, t in {**tensors, part: tensor}.items() if t is not None}
    with pytest.raises(CheckpointInvalid, match=MODULE) as caught:
        unpack_bytes(MODULE, tensors, (128, 8), claim)
    assert said in str(caught.value)


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors"])
def test_an_engine_says_what_the_config_calls_it(tmp_path, method):
    write_bytes(tmp_path, ByteLayout("float", "tensor", method=method))
    config = EngineConfig(model=str(tmp_path), device="cpu", dtype="float32")
    assert build_runner(config).base.quantization == method


def test_blocks_that_do_not_fit_are_refused():
    tensors, _, claim = made((256, 192), ByteLayout("float", "block", method="fp8"))
    tensors["weight_scale_inv"] = tensors["weight_scale_inv"][:1]
    with pytest.raises(CheckpointInvalid, match=r"\[2, 2\] of blocks"):
        unpack_bytes(MODULE, tensors, (256, 192), claim)


def test_a_checkpoint_without_a_config_is_read_by_its_tensors(tmp_path):
    stored, dense, config = write_bytes(tmp_path / "q", PER_CHANNEL)
    plain = {k: v for k, v in config.items() if k != "quantization_config"}
    save(tmp_path / "q", stored, plain)
    save(tmp_path / "d", dense, plain)
    assert torch.equal(_logits(tmp_path / "q"), _logits(tmp_path / "d"))


TOLD = [x for x in BYTE_LAYOUTS if x.scales != "block" or x == ByteLayout("float", "block", "fp8")]


@pytest.mark.parametrize("layout", TOLD, ids=str)
def test_without_a_claim_the_tensors_tell(layout):
    tensors, dense, _ = made((256, 192), layout)
    assert torch.equal(unpack_bytes(MODULE, tensors, (256, 192), Claim()).dense(), dense)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"fmt": "e5m2"}, "fmt='e5m2'"),
        ({"weight_block_size": [128]}, "block size"),
        ({"weight_block_size": [0, 128]}, "block size"),
    ],
)
def test_a_config_we_do_not_serve_is_refused_by_field(change, field):
    with pytest.raises(CheckpointInvalid, match=field):
        read_scheme({"config.json": {"quant_method": "fp8"} | change})


def test_scales_of_activations_are_not_needed(tmp_path):
    stored, _, config = write_bytes(tmp_path / "a", PER_CHANNEL)
    name = "model.layers.0.self_attn"
    scales = {f"{name}.k_scale": torch.ones(1), f"{name}.q_proj.input_scale": torch.ones(1)}
    config["quantization_config"] |= {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    save(tmp_path / "b", stored | scales, config)
    assert torch.equal(_logits(tmp_path / "a"), _logits(tmp_path / "b"))


def test_a_module_the_config_exempts_must_be_dense(tmp_path):
    stored, _, config = write_bytes(tmp_path, PER_CHANNEL)
    config = json.loads(json.dumps(config))
    config["quantization_config"]["ignore"] = ["re:.*down_proj"]
    save(tmp_path, stored, config)
    with pytest.raises(CheckpointInvalid, match=r"layers\.0\.mlp\.down_proj: found weight"):
        Rig(tmp_path)


def test_float8_multiplies_group_by_group():
    values = torch.ones(2, 6).to(torch.float8_e4m3fn)
    weight = Float8(values=values, scales=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), group=4)
    assert weight.dense().tolist() == [[1, 1, 1, 1, 2, 2], [3, 3, 3, 3, 4, 4]]
