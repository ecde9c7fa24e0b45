import pytest
import torch

from kernels.e4m3 import from_e4m3
from kernels.launch import KernelArgumentError
from kernels.qkv_heads import HeadNorms, qkv_heads, qkv_heads_reference
from tests.kernels.tolerance import assert_near

SHAPES = [(9, 3, 64), (1, 1, 2), (7, 7, 80), (12, 1, 128)]  # query heads, key heads, head size
PAGE = 16


def case(tokens, shape, dtype, device, *, parts=1):
    """Addends of a projection, the view of layer 1 of 3, and where the tokens stand."""
    query_heads, key_heads, head_dim = shape
    random = torch.Generator().manual_seed(tokens + head_dim)
    width = (query_heads + 2 * key_heads) * head_dim
    qkv = torch.randn(parts, tokens, width, generator=random).to(device)
    pool = torch.randn(4, 3, 2, key_heads, PAGE, head_dim, generator=random).to(device, dtype)
    turn = torch.arange(50)[:, None] / 100.0 ** (torch.arange(head_dim // 2) / head_dim)
    slots = torch.randperm(4 * PAGE, generator=random)[:tokens]
    slots[1::3] = -1
    return qkv, {
        "kv": pool[:, 1],
        "positions": (torch.arange(tokens) * 3 % 50).to(device),
        "slots": slots.to(device),
        "cos_sin": torch.cat((turn.cos(), turn.sin()), dim=1).to(device),
    }


def norms(head_dim, device):
    q, k = torch.rand(2, head_dim, generator=torch.Generator().manual_seed(1)).to(device)
    return HeadNorms(q=q, k=k, eps=1e-5)


def assert_as_the_reference(qkv, facts, dtype):
    facts = dict(facts)
    expected_q, expected_kv = qkv_heads_reference(qkv, **facts)
    facts["kv"] = facts["kv"].clone()
    q = qkv_heads(qkv, **facts)
    assert q.dtype == dtype
    assert_near(q, expected_q, dtype)
    assert_near(facts["kv"], expected_kv, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normed", [False, True])
def test_matches_the_reference(shape, tokens, normed, dtype, device):
    qkv, facts = case(tokens, shape, dtype, device)
    facts["norms"] = norms(shape[2], device) if normed else None
    assert_as_the_reference(qkv[0].to(dtype), facts, dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((9, 3, 64), torch.bfloat16), ((1, 1, 2), torch.float32), ((3, 3, 80), torch.float32)],
)
def test_matches_the_reference_into_8_bits(shape, dtype, device):
    qkv, facts = case(5, shape, torch.float32, device)
    facts["kv"] = facts["kv"].contiguous().to(torch.float8_e4m3fn)
    facts |= {"norms": norms(shape[2], device), "dtype": dtype}
    sizes = torch.rand(facts["kv"].shape[:4], device=device)
    wanted, kv = sizes.clone(), facts["kv"].clone()
    q, expected = qkv_heads_reference(qkv[0].to(dtype), **facts, magnitudes=wanted)
    actual = qkv_heads(qkv[0].to(dtype), **facts | {"kv": kv, "magnitudes": sizes})
    assert actual.dtype == dtype
    assert_near(actual, q, dtype)
    assert_near(sizes.float(), wanted.float(), torch.bfloat16)
    off = from_e4m3(kv, sizes, torch.float32) - from_e4m3(expected, wanted, torch.float32)
    bound = wanted.float().unsqueeze(-1) * (1e-3 if dtype == torch.float32 else 0.08)
    assert bool((off.abs() <= bound).float().mean() > 0.995)  # ties may round either way


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_adds_up_what_comes_in_planes(parts, device):
    qkv, facts = case(5, (9, 3, 64), torch.bfloat16, device, parts=parts)
    assert_as_the_reference(qkv, facts | {"norms": norms(64, device)}, torch.bfloat16)


@pytest.mark.parametrize("parts", [1, 3])
def test_adds_what_comes_beside_the_planes(parts, device):
    qkv, facts = case(5, (9, 3, 64), torch.bfloat16, device, parts=parts)
    addend = qkv[0].flip(1).to(torch.bfloat16)
    assert_as_the_reference(qkv, facts | {"addend": addend}, torch.bfloat16)


def test_touches_no_slot_but_its_own(device):
    qkv, facts = case(7, (9, 3, 64), torch.float32, device)
    before = facts["kv"].clone()
    qkv_heads(qkv[0], **facts)
    written = torch.zeros(4 * PAGE, dtype=torch.bool, device=device)
    written[facts["slots"][facts["slots"] >= 0]] = True
    changed = (facts["kv"] != before).any(dim=(1, 2, 4)).view(-1)
    assert torch.equal(changed, written)


def test_a_token_does_not_depend_on_its_neighbours(device):
    qkv, facts = case(16, (9, 3, 64), torch.bfloat16, device, parts=2)
    alone = facts | {"kv": facts["kv"].clone()}
    alone |= {name: facts[name][6:7] for name in ("positions", "slots")}
    q = qkv_heads(qkv[:, 6:7], **alone)
    assert torch.equal(qkv_heads(qkv, **facts)[6:7], q)
    slot = int(facts["slots"][6])
    page, offset = divmod(slot, PAGE)
    assert torch.equal(facts["kv"][page, :, :, offset], alone["kv"][page, :, :, offset])


def test_takes_no_tokens(device):
    qkv, facts = case(0, (9, 3, 64), torch.float32, device)
    assert qkv_heads(qkv, **facts).shape == (0, 9, 64)


def test_refuses_columns_that_are_no_heads(device):
    qkv, facts = case(2, (9, 3, 64), torch.float32, device)
    with pytest.raises(KernelArgumentError, match="columns"):
        qkv_heads(qkv[..., :-1], **facts)
