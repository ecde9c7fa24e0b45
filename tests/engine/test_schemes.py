"""Settings per module: GPTQModel's ``dynamic``, and whole checkpoints that mix what they are in."""

import pytest
import torch

from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.loading import Placement, Weights
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.quant.configs import read_scheme
from engine.quant.schemes import Claim, Scheme
from tests.engine.checkpoints import Layout, Shape, quantised, save, write_checkpoint
from tests.engine.rig import Rig, chunk

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
COMPRESSED_CONFIG = {
    "config_groups": {"all": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
    "format": "int-quantized",
}
Q = "model.layers.0.self_attn.q_proj"
V = "model.layers.1.self_attn.v_proj"
UP = "model.layers.0.mlp.up_proj"
DOWN = "model.layers.1.mlp.down_proj"


def scheme(**changes):
    return read_scheme({"config.json": GPTQ | changes})


def test_without_claims_the_tensors_alone_tell():
    assert read_scheme({"config.json": {}, "quantize_config.json": {}}) == Scheme()
    assert Scheme().claim(Q) == Claim()


@pytest.mark.parametrize("config", ["gptq", [4]])
def test_claims_that_are_no_object_are_refused_under_their_name(config):
    with pytest.raises(CheckpointInvalid, match=r"config.json: found .*expected an object"):
        read_scheme({"config.json": config})


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes"),
        ({"group_size": 64, "bits": 4, "mode": "affine"}, "mlx"),
        *(({"quant_method": name}, name) for name in ("hqq", "eetq", "marlin", "gguf", "mxfp4")),
    ],
)
def test_another_method_is_refused_by_its_name(config, method):
    with pytest.raises(CheckpointInvalid, match=f"config.json: quant_method='{method}'"):
        read_scheme({"config.json": config})


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"bits": 4}, "gptq"),
        ({"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "awq"),
        ({"bits": 4, "zero_point": False}, "awq"),
        (COMPRESSED_CONFIG, "compressed-tensors"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8"),
    ],
)
def test_a_method_is_told_by_what_only_it_says(config, method):
    assert read_scheme({"config.json": config}).claim(Q).method == method


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            "quant_method=.modelopt with quant_algo='NVFP4'",
        ),
        ({"quant_method": "awq", "backend": "llm-awq"}, "backend='llm-awq'"),
    ],
)
def test_a_variant_that_packs_otherwise_is_refused_by_field(config, said):
    with pytest.raises(CheckpointInvalid, match=said):
        read_scheme({"config.json": config})


def test_the_first_expression_that_matches_holds():
    read = scheme(
        dynamic={
            r"+:.*\.0\..*q_proj": {"bits": 8, "group_size": 32},
            r"-:.*down_proj": {},
            r".*q_proj": {"group_size": 64},
            r"model\.layers\.0\.mlp": {"sym": False, "desc_act": True},
        }
    )
    assert (read.claim(Q).bits, read.claim(Q).group_size) == (8, 32)
    other = read.claim("model.layers.1.self_attn.q_proj")
    assert (other.bits, other.group_size, other.symmetric) == (4, 64, True)
    assert read.claim(DOWN) is None
    assert (read.claim(UP).symmetric, read.claim(UP).act_order) == (False, True)
    assert read.claim(V) == read.default


def test_an_expression_matches_from_the_start_of_the_name():
    read = scheme(dynamic={"self_attn": {"bits": 8}, "model.*v_proj$": {"bits": 8}})
    assert read.claim(Q).bits == 4
    assert read.claim(V).bits == 8


def test_awq_has_dynamic_settings_too():
    read = read_scheme(
        {"config.json": {"quant_method": "awq", "bits": 4, "dynamic": {"-:.*down": {}}}}
    )
    assert read.claim(DOWN) is None
    assert read.claim(Q).method == "awq"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"bits": 3}, "bits=3"),
        ({"group_size": 16}, "group_size=16"),
        ({"format": "marlin", "checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
    ],
)
def test_an_override_we_do_not_serve_is_refused_under_the_name_of_its_module(override, said):
    read = scheme(dynamic={".*q_proj": override})
    assert read.claim(V).bits == 4
    with pytest.raises(CheckpointInvalid, match=rf"{Q}, by dynamic: {said}"):
        read.claim(Q)


@pytest.mark.parametrize("field", ["rotation", "activation"])
def test_what_changes_the_inputs_on_the_way_is_refused(field):
    with pytest.raises(CheckpointInvalid, match=field):
        scheme(**{field: "hadamard"})


WIDE = Shape(hidden=128, inner=128, head_dim=32)
FOUR = Layout("gptq", 64, act_order=True)
EIGHT = Layout("gptq", 32, symmetric=True, bits=8)
COMPRESSED = Layout("compressed-tensors", 64, act_order=True)


def logits(path):
    rig = Rig(path)
    return rig.logits([chunk([5, 9, 14, 3, 60], rig.pages(16))])


def refusal(path):
    with pytest.raises(CheckpointInvalid) as caught:
        Rig(path)
    return str(caught.value)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("gptq"), WIDE, FOUR)


def mixed(written, others):
    """The tensors of ``written``, stored and dense, with some modules in another layout."""
    random = torch.Generator().manual_seed(5)
    stored, dense = dict(written.stored), dict(written.dense)
    for module, layout in others.items():
        for name in [name for name in stored if name.startswith(f"{module}.")]:
            del stored[name]
        N, K = dense[f"{module}.weight"].shape
        if layout is None:
            stored[f"{module}.weight"] = dense[f"{module}.weight"]
            continue
        parts, dense[f"{module}.weight"] = quantised(K, N, layout, random)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    return stored, dense


def equal_to_dense(tmp_path, written, config, stored, dense):
    shape = written.shape.config
    save(tmp_path / "packed", stored, shape | {"quantization_config": config})
    save(tmp_path / "dense", dense, shape)
    return torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "dense"))


@pytest.mark.parametrize("layout", [EIGHT, COMPRESSED], ids=str)
def test_a_whole_checkpoint_equals_its_dequantised_one(tmp_path, layout):
    written = write_checkpoint(tmp_path / "w", WIDE, layout)
    assert equal_to_dense(tmp_path, written, layout.config, written.stored, written.dense)
    spec = ModelSpec.read(written.shape.config)
    place = Placement(torch.device("cpu"), torch.float32)
    weights = Weights(Checkpoint(written.path), spec, place)
    Decoder(weights, positions=64)
    assert weights.quantization == layout.method


def test_fused_modules_may_each_have_their_own_settings(tmp_path, written):
    stored, dense = mixed(written, {Q: EIGHT, V: None, UP: EIGHT, DOWN: None})
    config = FOUR.config | {
        "dynamic": {
            f"+:{Q}": {"bits": 8, "group_size": 32, "sym": True, "desc_act": False},
            f"+:{UP}": {"bits": 8, "group_size": 32, "sym": True},
            f"-:{V}": {},
            "-:.*1.*down_proj": {},
        }
    }
    assert equal_to_dense(tmp_path, written, config, stored, dense)


def test_a_module_unlike_its_settings_is_named(tmp_path, written):
    stored, _ = mixed(written, {Q: EIGHT})
    config = written.shape.config
    save(tmp_path / "a", stored, config | {"quantization_config": FOUR.config})
    assert f"{Q}: found 8 bits" in refusal(tmp_path / "a")
    exempt = FOUR.config | {"dynamic": {f"-:{V}": {}}}
    save(tmp_path / "b", written.stored, config | {"quantization_config": exempt})
    assert f"{V}: found qweight; expected weight" in refusal(tmp_path / "b")


@pytest.mark.parametrize("spelling", ["self_attn", "v_proj", V])
def test_awq_modules_not_converted_are_those_stored_dense(tmp_path, spelling):
    layout = Layout("awq", 64)
    written = write_checkpoint(tmp_path / "w", WIDE, layout)
    stored, dense = mixed(written, {V: None})
    config = layout.config | {"modules_to_not_convert": [spelling]}
    assert equal_to_dense(tmp_path, written, config, stored, dense)


def test_the_older_key_of_its_config_is_read_too(tmp_path):
    written = write_checkpoint(tmp_path / "w", WIDE, COMPRESSED)
    config = COMPRESSED.config | {"format": "marlin-24"}
    save(tmp_path / "x", written.stored, written.shape.config | {"compression_config": config})
    assert "compression_config: format='marlin-24'" in refusal(tmp_path / "x")


def test_ignored_modules_of_compressed_tensors_are_dense(tmp_path):
    written = write_checkpoint(tmp_path / "w", WIDE, COMPRESSED)
    stored, dense = mixed(written, {V: None, DOWN: None})
    config = COMPRESSED.config | {"ignore": ["lm_head", V, "re:.*1.*down_proj"]}
    assert equal_to_dense(tmp_path, written, config, stored, dense)
    shape = written.shape.config
    save(tmp_path / "x", written.stored, shape | {"quantization_config": config})
    assert f"{V}: found weight_packed" in refusal(tmp_path / "x")


@pytest.mark.parametrize("part", ["weight_scale", "weight_shape"])
def test_a_missing_part_of_a_compressed_module_is_named(tmp_path, part):
    written = write_checkpoint(tmp_path / "w", WIDE, COMPRESSED)
    stored = {name: t for name, t in written.stored.items() if name != f"{DOWN}.{part}"}
    config = written.shape.config | {"quantization_config": COMPRESSED.config}
    save(tmp_path / "x", stored, config)
    assert f"{DOWN}: found weight_packed and no {part}" in refusal(tmp_path / "x")


def test_tensors_of_other_methods_are_refused_by_module(tmp_path, written):
    stored, _ = mixed(written, {Q: None})
    narrow = stored | {f"{Q}.weight": stored[f"{Q}.weight"].to(torch.float8_e4m3fn)}
    save(tmp_path / "fp8", narrow, written.shape.config)
    assert f"{Q}: found no weight_scale" in refusal(tmp_path / "fp8")
    states = {f"{Q}.weight.absmax": torch.ones(4), f"{Q}.weight": torch.ones(8192, 1).byte()}
    save(tmp_path / "nf4", stored | states, written.shape.config)
    assert f"{Q}: found {Q}.weight U8" in refusal(tmp_path / "nf4")
    save(
        tmp_path / "w8a8",
        stored | {f"{UP}.weight_scale": torch.ones(128, 1)},
        {**written.shape.config},
    )
    assert f"{UP}.weight_scale: found F32" in refusal(tmp_path / "w8a8")


ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 64, "sym": False}
PACKED = "auto_round:auto_gptq"


@pytest.mark.parametrize(
    ("layout", "packing"),
    [
        (Layout("gptq", 64), PACKED),
        (Layout("gptq", 64, zeros="v2"), "auto_round:gptqmodel"),
        (Layout("gptq", 64, symmetric=True, zeros="v2"), "auto_round"),
        (Layout("gptq", 64, symmetric=True), None),
        (Layout("awq", 64), "auto_round:auto_awq"),
    ],
    ids=str,
)
def test_a_checkpoint_of_auto_round_equals_its_dequantised_one(tmp_path, layout, packing):
    written = write_checkpoint(tmp_path / "w", WIDE, layout)
    stored, dense = mixed(written, {V: None, DOWN: None, UP: None})
    config = ROUND | {
        "sym": layout.symmetric,
        "packing_format": packing,
        "extra_config": {V: {"bits": 16, "data_type": "float"}, r".*1\.mlp\.down": {"bits": 16}},
    }
    assert equal_to_dense(tmp_path, written, config, stored, dense)


def test_what_auto_round_says_of_one_module_holds_before_an_expression():
    settings = {r".*proj": {"group_size": 32}, Q: {"bits": 8, "sym": True}, "v_proj": {"bits": 8}}
    config = ROUND | {"packing_format": PACKED, "extra_config": settings}
    read = read_scheme({"quantization_config.json": config})
    assert (read.claim(Q).bits, read.claim(Q).group_size, read.claim(Q).symmetric) == (8, 64, True)
    assert (read.claim(V).bits, read.claim(V).group_size) == (4, 32)
    assert read.claim("lm_head").zeros == "v1"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"packing_format": "auto_round:llm_compressor"}, "packing_format='auto_round:llm_comp"),
        ({"packing_format": ["awq"]}, "packing_format="),
        ({"data_type": "mx_fp"}, "data_type='mx_fp'"),
        ({"act_bits": 8}, "act_bits=8"),
        ({"super_bits": 6}, "super_bits=6"),
        ({"bits": 2}, "bits=2"),
        ({"group_size": 16}, "group_size=16"),
        ({"extra_config": [Q]}, "extra_config="),
        ({"extra_config": {Q: 8}}, "extra_config"),
        ({"extra_config": {"(": {}}}, "a regular expression"),
    ],
)
def test_what_auto_round_does_that_we_do_not_serve_is_refused_by_field(change, said):
    with pytest.raises(CheckpointInvalid) as caught:
        read_scheme({"config.json": ROUND | {"packing_format": PACKED} | change})
    assert said in str(caught.value)
