import numpy as np
import pytest
import torch

from kernels.launch import KernelArgumentError
from kernels.mask_tokens import mask_tokens, mask_tokens_reference


def bits_of(count: int, words: int, seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    words_of = random.integers(-(2**31), 2**31, size=(count, words), dtype=np.int64)
    return torch.from_numpy(words_of.astype(np.int32))


def logits_of(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(width))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("width", [1, 31, 32, 33, 257, 5000])
def test_matches_the_reference(rows, width, device):
    logits, bits = logits_of(rows, width), bits_of(3, -(-width // 32))
    which = torch.tensor([0, -1, 2, 1, 2][:rows], dtype=torch.int32)
    expected = mask_tokens_reference(logits, which, bits)
    there = logits.to(device)
    mask_tokens(there, which.to(device), bits.to(device))
    assert torch.equal(there.cpu(), expected)


def test_the_highest_bit_of_a_word_counts_like_the_others(device):
    logits = torch.zeros(1, 64, device=device)
    bits = torch.tensor([[-(2**31), 1]], dtype=torch.int32, device=device)
    mask_tokens(logits, torch.zeros(1, dtype=torch.int32, device=device), bits)
    assert logits[0].isfinite().nonzero().flatten().tolist() == [31, 32]


def test_tokens_past_the_last_word_are_barred(device):
    logits = torch.zeros(2, 100, device=device)
    bits = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    mask_tokens(logits, torch.tensor([0, -1], dtype=torch.int32, device=device), bits)
    assert logits[0].isfinite().sum() == 64
    assert logits[1].isfinite().all()


def test_rows_without_bits_are_not_touched_whatever_they_hold(device):
    logits = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1.0]], device=device)
    before = logits.clone()
    none = torch.empty(0, 1, dtype=torch.int32, device=device)
    mask_tokens(logits, torch.tensor([-1], dtype=torch.int32, device=device), none)
    assert torch.equal(logits.isnan(), before.isnan())
    assert torch.equal(logits.nan_to_num(7), before.nan_to_num(7))


def test_takes_logits_whose_rows_lie_apart(device):
    wide = torch.zeros(3, 96, device=device)
    mask_tokens(
        wide[:, :40],
        torch.zeros(3, dtype=torch.int32, device=device),
        torch.tensor([[1, 0]], dtype=torch.int32, device=device),
    )
    assert wide[:, 1:40].isinf().all()
    assert wide[:, 40:].isfinite().all()


def test_takes_no_rows(device):
    none = torch.empty(0, dtype=torch.int32, device=device)
    mask_tokens(torch.zeros(0, 40, device=device), none, bits_of(1, 2).to(device))


def test_refuses_other_types(device):
    rows = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(KernelArgumentError, match="bits"):
        mask_tokens(torch.zeros(1, 8, device=device), rows, torch.zeros(1, 1, device=device))
