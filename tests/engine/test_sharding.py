"""What the members of a team compute of their parts adds up to what one engine computes, whatever
the checkpoint's format and the adapters; what cannot be cut is refused by name."""

from dataclasses import replace

import pytest
import torch

from adapters.keys import EMBEDDING, HEAD
from adapters.pack import Factor, PackedAdapter, Table
from engine.checkpoint import Checkpoint
from engine.errors import AdapterUnusable, CheckpointInvalid, ConfigError
from engine.models.spec import ModelSpec
from engine.team.shard import Shard
from tests.engine.bytes_checkpoints import ByteLayout, write_bytes
from tests.engine.checkpoints import Layout, write_checkpoint
from tests.engine.checkpoints import Shape as Model
from tests.engine.factors import random_adapter
from tests.engine.members import Members
from tests.engine.rig import Rig, chunk

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 5e-5, "atol": 5e-5}
MODEL = Model(hidden=64, inner=128, heads=4, kv_heads=2, head_dim=32)
QUANTISED = [
    Layout("awq", 32),
    Layout("gptq", 64),
    Layout("gptq", -1, symmetric=True),
    Layout("gptq", 32, act_order=True),
    Layout("gptq", 64, act_order=True, bits=8),
    Layout("compressed-tensors", 32, act_order=True, symmetric=True),
]
BYTES = [
    ByteLayout("float", "channel"),
    ByteLayout("float", "block", method="fp8", block=(32, 64)),
    ByteLayout("int", "group", symmetric=False),
]
FAMILIES = {
    "biases, tied": replace(MODEL, attention_bias=True, tied=True, vocab=97),
    "norms of heads": replace(
        MODEL, qk_norm=True, extra={"architectures": ["Qwen3ForCausalLM"]}, vocab=97
    ),
}


def tokens(count, seed=0):
    return torch.randint(3, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def every_kind(rig, adapters):
    """Logits of prompts and of decodes behind them, in mixed passes."""
    pages = [rig.pages(48) for _ in adapters]
    prompts = [tokens(9 + 7 * i, seed=i) for i in range(len(adapters))]
    trio = list(zip(prompts, pages, adapters, strict=True))
    first = rig.logits([chunk(p, own, adapter=a) for p, own, a in trio])
    more = [
        chunk(tokens(1 + 4 * (i % 2), seed=50 + i), own, start=len(p), adapter=a)
        for i, (p, own, a) in enumerate(trio)
    ]
    return torch.cat([first, rig.logits(more)])


def agree(path, size, adapters=(), **settings):
    """Logits of the base and of all adapters, of one engine and of every member of a team."""

    def found(rig):
        for row, packed in enumerate(adapters):
            rig.load(row, packed)
        return every_kind(rig, [-1, *range(len(adapters))])

    expected = found(Rig(path, **settings))
    with Members(path, size, **settings) as team:
        for logits in team.all(found):
            torch.testing.assert_close(logits, expected, **CLOSE)


def adapters_of(path):
    spec = ModelSpec.read(Checkpoint(path).config)
    return [random_adapter(spec, rank, seed=row) for row, rank in enumerate((4, 19))]


@pytest.mark.parametrize("layout", QUANTISED, ids=str)
def test_quantised_parts_add_up(layout, tmp_path):
    path = write_checkpoint(tmp_path, MODEL, layout).path
    agree(path, 2, adapters_of(path))


@pytest.mark.parametrize("layout", BYTES, ids=str)
def test_parts_of_a_byte_a_weight_add_up(layout, tmp_path):
    write_bytes(tmp_path, layout, MODEL)
    agree(tmp_path, 2, adapters_of(tmp_path))


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_of_every_family_add_up(name, tmp_path):
    path = write_checkpoint(tmp_path, FAMILIES[name]).path
    agree(path, 2, adapters_of(path), narrow=name == "norms of heads")


def test_key_value_heads_fewer_than_members_are_held_by_several(tmp_path):
    path = write_checkpoint(tmp_path, MODEL, Layout("gptq", 32, act_order=True)).path
    agree(path, 4, adapters_of(path))


def special(spec):
    """Adapters that are more than A and B: DoRA, biases, and changes of embeddings and head."""
    plain, random = random_adapter(spec, 4, seed=7), torch.Generator().manual_seed(7)

    def vector(factor):
        return torch.randn(len(factor.b), generator=random)

    def every(change):
        return {key: change(factor) for key, factor in plain.factors.items()}

    dora = every(lambda f: replace(f, magnitude=1 + 0.1 * vector(f)))
    biased = every(lambda f: replace(f, bias=0.1 * vector(f), lora_bias=0.1 * vector(f)))
    rows = torch.randn(2, spec.hidden_size, generator=random)
    low = 0.1 * torch.randn(spec.vocab_size, 3, generator=random)
    high = torch.randn(3, spec.hidden_size, generator=random)
    tables = {EMBEDDING: Table(rows=rows, ids=(5, 90)), HEAD: Table(low=low, high=high)}
    return [
        replace(plain, digest="dora", factors=dora),
        replace(plain, digest="biased", factors=biased),
        replace(plain, digest="outer", tables=tables),
    ]


def test_dora_biases_and_tables_are_what_they_are_in_one_engine(tmp_path):
    shape = replace(MODEL, attention_bias=True)
    path = write_checkpoint(tmp_path, shape, Layout("gptq", 32, act_order=True)).path
    agree(path, 2, special(ModelSpec.read(Checkpoint(path).config)))


def test_a_dora_norm_of_zero_in_one_members_part_fails_the_adapter_on_all(tmp_path):
    path = write_checkpoint(tmp_path, MODEL).path
    spec = ModelSpec.read(Checkpoint(path).config)
    with Members(path, 2) as team:
        weight = team.rigs[0].model.linears()[0]["qkv"](torch.eye(spec.hidden_size))[:, :1]
        b = torch.zeros(spec.query_size, 1)
        b[0] = -1.0  # of the first member's first row all is taken away
        factor = Factor(weight.t().contiguous(), b, magnitude=torch.ones(spec.query_size))
        packed = PackedAdapter("zero", 1, {(0, "q_proj"): factor})

        def placed(rig):
            with pytest.raises(AdapterUnusable, match="DoRA norm"):
                rig.load(0, packed)
            return True

        assert all(team.all(placed))


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (3, "tensor_parallel_size=3 does not divide num_attention_heads=4"),
        (8, "tensor_parallel_size=8 does not divide num_attention_heads=4"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_by_name(size, reason, tmp_path):
    spec = ModelSpec.read(Checkpoint(write_checkpoint(tmp_path, MODEL).path).config)
    with pytest.raises(ConfigError, match=reason):
        Shard(0, size, spec)


def test_heads_that_neither_divide_nor_are_divided_are_refused_by_name(tmp_path):
    shape = replace(MODEL, heads=12, kv_heads=6, head_dim=16)
    spec = ModelSpec.read(Checkpoint(write_checkpoint(tmp_path, shape).path).config)
    with pytest.raises(ConfigError, match="num_key_value_heads=6"):
        Shard(0, 4, spec)


def test_groups_that_would_be_cut_too_small_are_refused_by_name(tmp_path):
    path = write_checkpoint(tmp_path, replace(MODEL, head_dim=16), Layout("awq", 32)).path
    with pytest.raises(CheckpointInvalid, match="o_proj: tensor parallel parts of 16 inputs"):
        Members(path, 4)
