import pytest
import torch

from kernels.rope import rope, rope_reference
from tests.kernels.tolerance import assert_near


def heads(tokens, query_heads, key_heads, head_dim, dtype, device):
    """q and k as views of one fused projection, as a layer has them."""
    random = torch.Generator().manual_seed(tokens)
    width = (query_heads + 2 * key_heads) * head_dim
    qkv = torch.randn(tokens, width, generator=random).to(device, dtype)
    q, k, _ = qkv.split([n * head_dim for n in (query_heads, key_heads, key_heads)], dim=1)
    return q.view(tokens, query_heads, head_dim), k.view(tokens, key_heads, head_dim), qkv


def angles(positions, head_dim, device):
    turn = torch.arange(positions)[:, None] / 100.0 ** (torch.arange(head_dim // 2) / head_dim)
    return torch.cat((turn.cos(), turn.sin()), dim=1).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize(
    ("query_heads", "key_heads", "head_dim"), [(9, 3, 64), (1, 1, 2), (7, 7, 80), (12, 1, 128)]
)
def test_matches_the_reference(tokens, query_heads, key_heads, head_dim, dtype, device):
    q, k, _ = heads(tokens, query_heads, key_heads, head_dim, dtype, device)
    positions = torch.arange(tokens, device=device) * 3 % 50
    table = angles(50, head_dim, device)
    expected_q, expected_k = rope_reference(q, k, positions, table)
    rope(q, k, positions, table)
    assert_near(q, expected_q, dtype)
    assert_near(k, expected_k, dtype)


def test_touches_nothing_but_q_and_k(device):
    q, k, qkv = heads(5, 9, 3, 64, torch.bfloat16, device)
    values = qkv[:, -3 * 64 :].clone()
    rope(q, k, torch.arange(5, device=device), angles(5, 64, device))
    assert torch.equal(qkv[:, -3 * 64 :], values)


def test_position_zero_changes_no_bit(device):
    q, k, qkv = heads(2, 3, 1, 64, torch.bfloat16, device)
    before = qkv.clone()
    rope(q, k, torch.zeros(2, dtype=torch.int64, device=device), angles(1, 64, device))
    assert torch.equal(qkv, before)


def test_a_token_does_not_depend_on_its_neighbours(device):
    q, k, _ = heads(33, 9, 3, 64, torch.bfloat16, device)
    alone_q, alone_k = q[20:21].clone(), k[20:21].clone()
    positions = torch.arange(33, device=device)
    table = angles(33, 64, device)
    rope(alone_q, alone_k, positions[20:21], table)
    rope(q, k, positions, table)
    assert torch.equal(q[20:21], alone_q)
    assert torch.equal(k[20:21], alone_k)


def test_takes_no_tokens(device):
    q, k, _ = heads(0, 3, 1, 64, torch.float32, device)
    rope(q, k, torch.zeros(0, dtype=torch.int64, device=device), angles(1, 64, device))
