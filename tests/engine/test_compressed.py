"""compressed-tensors: its packed modules, its config by target, and what of both is refused."""

import pytest
import torch

from engine.errors import CheckpointInvalid
from engine.quant.compressed import CompressedTensors, unpack_compressed
from engine.quant.configs import read_scheme
from engine.quant.schemes import Claim
from tests.engine.checkpoints import Layout, quantised

MODULE = "model.layers.3.self_attn.q_proj"
LAYOUTS = [
    Layout("compressed-tensors", group, symmetric, act_order=act_order, dtype=dtype, bits=bits)
    for group, act_order in ((32, False), (64, True), (128, False), (-1, False))
    for symmetric, dtype in ((True, torch.bfloat16), (False, torch.float16))
    for bits in (4, 8)
]
SIZES = [(576, 192), (128, 8)]


def made(size, layout):
    parts, dense = quantised(*size, layout, torch.Generator().manual_seed(0))
    claim = scheme(layout.config).claim(MODULE)
    return {"module": MODULE, **parts}, dense, claim


def scheme(config):
    return read_scheme({"config.json": config})


def refusal(tensors, size, claim):
    with pytest.raises(CheckpointInvalid, match=MODULE) as caught:
        unpack_compressed(CompressedTensors(**tensors), size, claim)
    return str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_layout_unpacks_to_its_dense_weight(size, layout):
    tensors, dense, claim = made(size, layout)
    weight = unpack_compressed(CompressedTensors(**tensors), size, claim)
    assert torch.equal(weight.dense(), dense)
    assert torch.equal(
        unpack_compressed(CompressedTensors(**tensors), size, Claim()).dense(), dense
    )


GROUPED = Layout("compressed-tensors", 32, False)


@pytest.mark.parametrize(
    ("part", "tensor", "said"),
    [
        ("weight_packed", torch.zeros((8, 17), dtype=torch.int32), "[8, 16] (4 bits)"),
        ("weight_packed", torch.zeros((8, 16)), "torch.float32"),
        ("weight_packed", torch.zeros((8, 32), dtype=torch.int32), "found 8 bits"),
        ("weight_shape", torch.tensor([128, 8]), "[8, 128]"),
        ("weight_scale", torch.ones((4, 8)), "float32 [8, 8]"),
        ("weight_scale", torch.ones(1), "float32 [8, G]"),
        ("weight_scale", torch.ones((8, 2)), "2 groups"),
        ("weight_scale", torch.full((8, 4), float("nan")), "not finite"),
        ("weight_zero_point", torch.zeros((8, 4), dtype=torch.int8), "int32 [1, 4]"),
        ("weight_zero_point", None, "symmetric=false"),
        ("weight_g_idx", torch.zeros(128, dtype=torch.int32), "uneven groups"),
    ],
)
def test_a_tensor_that_is_not_as_expected_is_named(part, tensor, said):
    tensors, _, claim = made((128, 8), GROUPED)
    assert said in refusal({**tensors, part: tensor}, (128, 8), claim)


def test_zeros_beside_a_symmetric_claim_must_be_none():
    tensors, _, _ = made((128, 8), GROUPED)
    claim = Claim(method="compressed-tensors", bits=4, group_size=32, symmetric=True)
    assert "symmetric=true" in refusal(tensors, (128, 8), claim)
    half = torch.full((1, 4), 0x88888888 - 2**32, dtype=torch.int32)
    tensors |= {"weight_zero_point": half}
    weight = unpack_compressed(CompressedTensors(**tensors), (128, 8), claim)
    assert weight.zeros.unique().tolist() == [8]


def test_a_last_word_may_be_filled_up():
    tensors, dense, claim = made((128, 8), Layout("compressed-tensors", -1, True))
    tensors["weight_shape"] = torch.tensor([8, 121])
    weight = unpack_compressed(CompressedTensors(**tensors), (121, 8), claim)
    assert torch.equal(weight.dense(), dense[:, :121])


def groups(**named):
    """A config whose groups are (targets, changes to the weights' settings)."""
    usual = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            name: {"targets": targets, "weights": usual | {"symmetric": True} | changes}
            for name, (targets, changes) in named.items()
        },
    }


def test_a_name_holds_before_an_expression_and_that_before_a_class():
    config = groups(
        first=(["Linear"], {}),
        second=([r"re:.*\.up_proj"], {"num_bits": 8}),
        third=(["model.layers.0.mlp.up_proj"], {"group_size": 32}),
    )
    read = scheme(config)
    assert read.claim("model.layers.0.mlp.down_proj").group_size == 128
    assert read.claim("model.layers.1.mlp.up_proj").bits == 8
    named = read.claim("model.layers.0.mlp.up_proj")
    assert (named.bits, named.group_size) == (4, 32)


def test_what_is_ignored_or_nobody_names_is_not_quantised():
    config = groups(some=([r"re:.*mlp"], {})) | {"ignore": ["a.mlp.up", "re:b"]}
    read = scheme(config)
    assert read.claim("c.mlp.up") is not None
    assert read.claim("a.mlp.up") is None
    assert read.claim("b.mlp.up") is None
    assert read.claim("a.attention.q") is None


def test_a_channel_is_a_group_of_all_rows():
    read = scheme(groups(all=(["Linear"], {"strategy": "channel", "group_size": None})))
    assert read.claim(MODULE).group_size == -1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_bits": 3}, "num_bits=3"),
        ({"type": "complex"}, "type='complex'"),
        ({"type": "float", "num_bits": 8, "strategy": "channel"}, "format='pack-quantized'"),
        ({"strategy": "tensor", "group_size": None}, "strategy='tensor'"),
        ({"strategy": "block"}, "strategy='block'"),
        ({"group_size": 16}, "group_size=16"),
        ({"dynamic": True}, "dynamic=True"),
        ({"actorder": "zigzag"}, "actorder='zigzag'"),
        ({"symmetric": "false"}, "symmetric='false'"),
    ],
)
def test_settings_we_do_not_serve_are_refused_under_the_name_of_a_module(changes, field):
    read = scheme(groups(good=([r"re:.*mlp"], {}), bad=(["Linear"], changes)))
    assert read.claim("model.layers.0.mlp.up_proj").bits == 4
    with pytest.raises(CheckpointInvalid, match=rf"{MODULE}: config_groups.bad: {field}"):
        read.claim(MODULE)


def test_quantised_activations_are_refused():
    config = groups(w4a8=(["Linear"], {}))
    config["config_groups"]["w4a8"]["input_activations"] = {"num_bits": 8, "type": "int"}
    with pytest.raises(CheckpointInvalid, match="input_activations"):
        scheme(config).claim(MODULE)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": "marlin-24"}, "format='marlin-24'"),
        ({"format": "nvfp4-pack-quantized"}, "format='nvfp4-pack-quantized'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        ({"config_groups": {}}, "config_groups"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "config_groups.W4A16"),
        ({"ignore": ["re:("]}, "ignore"),
        ({"ignore": [3]}, "ignore"),
        ({"ignore": "lm_head"}, "ignore='lm_head'; expected a list"),
    ],
)
def test_a_config_we_do_not_serve_is_refused_by_field(change, field):
    with pytest.raises(CheckpointInvalid, match=field):
        scheme(groups(all=(["Linear"], {})) | change)


def test_mixed_precision_is_read_group_by_group():
    config = groups(four=(["Linear"], {}), eight=(["re:.*down"], {"num_bits": 8}))
    config["format"] = "mixed-precision"
    for name, layout in (("four", "pack-quantized"), ("eight", "float-quantized")):
        config["config_groups"][name]["format"] = layout
    read = scheme(config)
    assert read.claim("a.up").bits == 4
    with pytest.raises(CheckpointInvalid, match=r"a\.down: config_groups.eight: format"):
        read.claim("a.down")  # floats, and its type is int


def test_settings_that_say_that_nothing_else_was_done_are_no_obstacle():
    said = {
        "sparsity_config": {"format": "dense", "global_sparsity": 0.1, "targets": []},
        "transform_config": {"config_groups": {}},
        "kv_cache_scheme": None,
    }
    plain = groups(all=(["Linear"], {}))
    assert scheme(plain | said).claim(MODULE) == scheme(plain).claim(MODULE)
