import pytest
import torch

from kernels import paged_decode as module
from kernels.launch import KernelArgumentError
from kernels.paged_decode import paged_decode, paged_decode_reference
from tests.kernels.pools import generator, scattered
from tests.kernels.tolerance import assert_near

LENGTHS = [1, 16, 0, 65, 200]  # a page's edge, an unused entry, several pages


def decode(q, contexts, rows, function=paged_decode, **options):
    out = torch.zeros_like(q)
    rows = torch.tensor(rows, dtype=torch.int32, device=q.device)
    function(
        q,
        contexts.kv,
        contexts.page_table,
        contexts.lengths,
        rows=rows,
        scale=q.shape[2] ** -0.5,
        out=out,
        magnitudes=contexts.magnitudes,
        **options,
    )
    return out


def queries(rows, heads, head_dim, dtype, device):
    return torch.randn(rows, heads, head_dim, generator=generator(9)).to(device, dtype)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize(
    ("query_heads", "key_heads", "head_dim", "dtype"),
    [
        (9, 3, 64, torch.bfloat16),
        (4, 4, 80, torch.float32),
        (17, 1, 16, torch.float32),
        (2, 1, 128, torch.float16),
    ],
)
def test_matches_the_reference(
    query_heads, key_heads, head_dim, dtype, page, window, deterministic, device
):
    shape = {"heads": key_heads, "head_dim": head_dim, "page": page}
    contexts = scattered(LENGTHS, dtype=dtype, device=device, **shape)
    q = queries(7, query_heads, head_dim, dtype, device)
    rows = [6, 0, 0, 3, 1]
    actual = decode(q, contexts, rows, window=window, deterministic=deterministic)
    expected = decode(q, contexts, rows, paged_decode_reference, window=window)
    assert_near(actual, expected, dtype)


@pytest.mark.parametrize(("window", "deterministic"), [(0, False), (40, True)])
@pytest.mark.parametrize(
    ("query_heads", "key_heads", "head_dim", "page", "dtype"),
    [
        (9, 3, 64, 16, torch.bfloat16),
        (4, 4, 80, 64, torch.float32),
        (2, 1, 128, 16, torch.float16),
    ],
)
def test_matches_the_reference_on_keys_of_8_bits(
    query_heads, key_heads, head_dim, page, dtype, window, deterministic, device
):
    shape = {"heads": key_heads, "head_dim": head_dim, "page": page}
    contexts = scattered(LENGTHS, dtype=dtype, device=device, **shape).narrow()
    q = queries(7, query_heads, head_dim, dtype, device)
    rows = [6, 0, 0, 3, 1]
    actual = decode(q, contexts, rows, window=window, deterministic=deterministic)
    expected = decode(q, contexts, rows, paged_decode_reference, window=window)
    is_wide = device == "cuda" and dtype == torch.float32  # multiplied as float16 there
    assert_near(actual, expected, torch.float16 if is_wide else dtype)


def test_keys_of_8_bits_attend_almost_as_wide_ones(device):
    shape = {"heads": 3, "head_dim": 64, "page": 16, "dtype": torch.float32, "device": device}
    wide = scattered([130, 63], **shape)
    q = queries(2, 9, 64, torch.float32, device)
    expected = decode(q, wide, [0, 1])
    off = decode(q, wide.narrow(), [0, 1]) - expected
    assert float(off.norm() / expected.norm()) < 0.05


def test_a_sequence_in_8_bits_does_not_depend_on_its_neighbours(device):
    shape = {"heads": 3, "head_dim": 64, "page": 16, "dtype": torch.bfloat16, "device": device}
    q = queries(5, 9, 64, torch.bfloat16, device)
    both = scattered([130, 200, 63], **shape).narrow()
    together = decode(q, both, [4, 0, 2], deterministic=True)
    both.page_table, both.lengths = both.page_table[:1, :9], both.lengths[:1]
    assert torch.equal(together[4], decode(q, both, [4], deterministic=True)[4])


def test_refuses_keys_of_8_bits_without_their_magnitudes(device):
    shape = {"heads": 1, "head_dim": 64, "page": 16, "dtype": torch.float32, "device": device}
    contexts = scattered([5], **shape).narrow()
    contexts.magnitudes = None
    with pytest.raises(KernelArgumentError, match="magnitudes"):
        decode(queries(1, 1, 64, torch.float32, device), contexts, [0])


def test_rows_without_a_sequence_keep_their_bits(device):
    contexts = scattered([5, 0], heads=1, head_dim=64, page=16, dtype=torch.float32, device=device)
    out = decode(queries(4, 1, 64, torch.float32, device), contexts, [2, 0])
    assert out[2].any()
    assert not out[[0, 1, 3]].any()


@pytest.mark.parametrize("page", [16, 64])
def test_a_sequence_does_not_depend_on_its_neighbours(page, device):
    shape = {"heads": 3, "head_dim": 64, "page": page, "dtype": torch.bfloat16, "device": device}
    q = queries(5, 9, 64, torch.bfloat16, device)
    both = scattered([130, 700, 63], **shape)
    together = decode(q, both, [4, 0, 2], deterministic=True)
    both.page_table, both.lengths = both.page_table[:1, : 130 // page + 1], both.lengths[:1]
    alone = decode(q, both, [4], deterministic=True)
    assert torch.equal(together[4], alone[4])


@pytest.mark.parametrize("splits", [1, 3, 7])
def test_any_number_of_parts_gives_the_same_attention(splits, device, monkeypatch):
    monkeypatch.setattr(module, "decode_splits", lambda *_: splits)
    contexts = scattered(
        [1, 200, 257], heads=1, head_dim=64, page=16, dtype=torch.float32, device=device
    )
    q = queries(3, 3, 64, torch.float32, device)
    expected = decode(q, contexts, [0, 1, 2], paged_decode_reference)
    assert_near(decode(q, contexts, [0, 1, 2]), expected, torch.float32)


@pytest.mark.parametrize(
    ("query_heads", "key_heads", "head_dim", "page", "dtype", "narrow", "window", "splits"),
    [
        (9, 3, 64, 16, torch.bfloat16, False, 0, 4),
        (4, 4, 80, 64, torch.float32, False, 40, 1),
        (8, 1, 16, 16, torch.float32, True, 40, 3),
    ],
)
def test_several_queries_of_a_sequence_match_the_reference(
    query_heads, key_heads, head_dim, page, dtype, narrow, window, splits, device, monkeypatch
):
    monkeypatch.setattr(module, "decode_splits", lambda *_: splits)
    shape = {"heads": key_heads, "head_dim": head_dim, "page": page}
    contexts = scattered([5, 16, 0, 65, 130, 67], dtype=dtype, device=device, **shape)
    contexts = contexts.narrow() if narrow else contexts
    q = queries(30, query_heads, head_dim, dtype, device)
    rows = [25, 0, 0, 5, 10, 15]
    lengths = torch.tensor([5, 1, 0, 4, 5, 3], dtype=torch.int32, device=device)
    several = {"query_len": lengths, "queries": 5, "window": window}
    actual = decode(q, contexts, rows, **several)
    expected = decode(q, contexts, rows, paged_decode_reference, **several)
    is_wide = device == "cuda" and dtype == torch.float32 and narrow
    assert_near(actual, expected, torch.float16 if is_wide else dtype)
    used = torch.cat([torch.arange(r, r + n) for r, n in zip(rows, lengths.tolist(), strict=True)])
    unused = sorted(set(range(30)) - set(used.tolist()))
    assert not actual[unused].any()


def test_queries_of_a_sequence_attend_as_each_would_alone(device):
    shape = {"heads": 3, "head_dim": 64, "page": 16, "dtype": torch.float32, "device": device}
    contexts, q = scattered([130, 63], **shape), queries(10, 9, 64, torch.float32, device)
    lengths = torch.tensor([4, 5], dtype=torch.int32, device=device)
    together = decode(q, contexts, [0, 5], query_len=lengths, queries=5)
    longest = contexts.lengths.clone()
    for before in range(4):
        contexts.lengths = longest - before
        alone = decode(q, contexts, [3 - before, 9 - before])
        for row in (3 - before, 9 - before):
            assert_near(together[row], alone[row], torch.float32)


def test_takes_no_sequences(device):
    contexts = scattered([], heads=1, head_dim=64, page=16, dtype=torch.float32, device=device)
    assert not decode(queries(2, 1, 64, torch.float32, device), contexts, []).any()


@pytest.mark.gpu
def test_a_thousand_runs_give_the_same_bits(device):
    contexts = scattered(
        [700, 65, 3000], heads=8, head_dim=128, page=64, dtype=torch.bfloat16, device=device
    )
    q = queries(3, 32, 128, torch.bfloat16, device)
    first = decode(q, contexts, [0, 1, 2])
    assert all(torch.equal(decode(q, contexts, [0, 1, 2]), first) for _ in range(1000))
