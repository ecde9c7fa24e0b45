import pytest
import torch

from kernels import tuning
from kernels.launch import use_triton
from kernels.paged_decode import paged_decode
from kernels.ragged_prefill import ragged_prefill, ragged_prefill_reference
from tests.kernels.pools import generator, scattered
from tests.kernels.tolerance import assert_near


def prefill(q, contexts, chunks, function=ragged_prefill, **options):
    """chunks: (first row, rows, context) of each sequence."""
    start, length, context = (
        torch.tensor(column, dtype=torch.int32, device=q.device)
        for column in zip(*chunks, strict=True)
    )
    if function is ragged_prefill:
        options["longest"] = int(length.max())
    out = torch.zeros_like(q)
    function(
        q,
        contexts.kv,
        contexts.page_table,
        start,
        length,
        context,
        scale=q.shape[2] ** -0.5,
        out=out,
        magnitudes=contexts.magnitudes,
        **options,
    )
    return out


def queries(rows, heads, head_dim, dtype, device):
    return torch.randn(rows, heads, head_dim, generator=generator(9)).to(device, dtype)


CHUNKS = [(0, 1, 1), (1, 5, 16), (6, 0, 0), (8, 17, 65), (25, 63, 130)]  # rows 6, 7 are nobody's


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize(
    ("query_heads", "key_heads", "head_dim", "dtype"),
    [(9, 3, 64, torch.bfloat16), (2, 2, 80, torch.float32), (7, 1, 16, torch.float32)],
)
def test_matches_the_reference(
    query_heads, key_heads, head_dim, dtype, page, window, deterministic, device
):
    lengths = [context for _, _, context in CHUNKS]
    shape = {"heads": key_heads, "head_dim": head_dim, "page": page}
    contexts = scattered(lengths, dtype=dtype, device=device, **shape)
    q = queries(90, query_heads, head_dim, dtype, device)
    actual = prefill(q, contexts, CHUNKS, window=window, deterministic=deterministic)
    expected = prefill(q, contexts, CHUNKS, ragged_prefill_reference, window=window)
    assert_near(actual, expected, dtype)


@pytest.mark.parametrize(("window", "deterministic"), [(0, False), (40, True)])
@pytest.mark.parametrize(
    ("query_heads", "key_heads", "head_dim", "page", "dtype"),
    [
        (3, 1, 64, 64, torch.bfloat16),
        (2, 2, 80, 16, torch.float32),
        (7, 1, 16, 16, torch.float16),
    ],
)
def test_matches_the_reference_on_keys_of_8_bits(
    query_heads, key_heads, head_dim, page, dtype, window, deterministic, device
):
    lengths = [context for _, _, context in CHUNKS]
    shape = {"heads": key_heads, "head_dim": head_dim, "page": page}
    contexts = scattered(lengths, dtype=dtype, device=device, **shape).narrow()
    q = queries(90, query_heads, head_dim, dtype, device)
    actual = prefill(q, contexts, CHUNKS, window=window, deterministic=deterministic)
    expected = prefill(q, contexts, CHUNKS, ragged_prefill_reference, window=window)
    is_wide = device == "cuda" and dtype == torch.float32  # multiplied as float16 there
    assert_near(actual, expected, torch.float16 if is_wide else dtype)


@pytest.mark.parametrize(("window", "narrow"), [(0, False), (700, False), (0, True)])
def test_contexts_in_parts_match_the_reference(window, narrow, device, monkeypatch):
    """Some short enough for one part, some whose first queries see none of the last part."""
    monkeypatch.setattr("kernels.ragged_prefill.prefill_splits", lambda *_: 3)
    chunks = [(0, 1, 1025), (1, 60, 540), (61, 0, 0), (62, 18, 1290), (80, 40, 60)]
    shape = {"heads": 1, "head_dim": 64, "page": 64, "dtype": torch.bfloat16, "device": device}
    contexts = scattered([context for _, _, context in chunks], **shape)
    contexts = contexts.narrow() if narrow else contexts
    q = queries(120, 3, 64, torch.bfloat16, device)
    actual = prefill(q, contexts, chunks, window=window)
    expected = prefill(q, contexts, chunks, ragged_prefill_reference, window=window)
    assert_near(actual, expected, torch.bfloat16)


@pytest.mark.parametrize(("window", "narrow"), [(0, False), (40, False), (0, True)])
@pytest.mark.parametrize("cut", [1, 16, 33, 130])
def test_a_row_does_not_depend_on_how_its_sequence_is_cut(cut, window, narrow, device):
    shape = {"heads": 1, "head_dim": 64, "page": 16, "dtype": torch.bfloat16, "device": device}
    contexts = scattered([131], **shape)
    contexts = contexts.narrow() if narrow else contexts
    q = queries(131, 3, 64, torch.bfloat16, device)
    options = {"window": window, "deterministic": True}
    whole = prefill(q, contexts, [(0, 131, 131)], **options)
    head = prefill(q, contexts, [(0, cut, cut)], **options)
    tail = prefill(q, contexts, [(cut, 131 - cut, 131)], **options)
    assert torch.equal(whole, head + tail)  # each wrote its rows and left zeros elsewhere


@pytest.mark.parametrize(("head_bytes", "columns"), [(128, 128), (256, 128), (512, 64), (1024, 16)])
def test_tiles_of_keys_and_values_fit_shared_memory_beside_queries(
    head_bytes, columns, monkeypatch
):
    monkeypatch.setattr(tuning, "device_name", lambda _device: "nvidia h200")
    monkeypatch.setattr(tuning, "shared_bytes", lambda _device: 227 << 10)
    config = tuning.prefill_config("ragged_prefill", 512, head_bytes, torch.device("cpu"))
    assert (config.rows + 2 * config.stages * config.columns) * head_bytes <= 227 << 10
    assert config.columns == columns


def test_a_chunk_does_not_depend_on_its_neighbours(device):
    shape = {"heads": 1, "head_dim": 64, "page": 16, "dtype": torch.bfloat16, "device": device}
    contexts = scattered([40, 257], **shape)
    q = queries(300, 3, 64, torch.bfloat16, device)
    together = prefill(q, contexts, [(3, 40, 40), (43, 257, 257)], deterministic=True)
    contexts.page_table = contexts.page_table[:1, :3]
    alone = prefill(q, contexts, [(3, 40, 40)], deterministic=True)
    assert torch.equal(together[3:43], alone[3:43])


def test_on_a_cpu_a_token_attends_alike_in_a_chunk_and_alone(device):
    shape = {"heads": 3, "head_dim": 64, "page": 16, "dtype": torch.bfloat16, "device": device}
    contexts = scattered([131], **shape)
    q = queries(131, 9, 64, torch.bfloat16, device)
    if use_triton(q):
        pytest.skip("a kernel splits the context of a decoding token, which rounds otherwise")
    whole = prefill(q, contexts, [(0, 131, 131)], deterministic=True)
    out = torch.zeros_like(q)
    rows = torch.tensor([130], dtype=torch.int32)
    paged_decode(
        q,
        contexts.kv,
        contexts.page_table,
        contexts.lengths,
        rows=rows,
        scale=0.125,
        out=out,
        deterministic=True,
    )
    assert torch.equal(out[130], whole[130])
