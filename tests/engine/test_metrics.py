"""What the engine exports: vLLM's names beside ours, and never a tenant."""

import pytest

from tests.engine.harness import Harness, config
from tests.fakes.runner import build


def value(text: str, sample: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{sample} ")]
    return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def text() -> str:
    engine = Harness(config(max_num_seqs=4), build(num_pages=24))
    for i, adapter in enumerate(["", "a2", "b3", ""]):
        engine.submit(f"r{i}", [3] * 4, 10, adapter=adapter, tenant="secret-tenant")
    engine.submit("refused", [])
    engine.run()
    engine.clock.advance(1)
    engine.submit("open", [3] * 4, 20)
    engine.step(3)
    engine.clock.advance(1)
    engine.step()
    return engine.metrics.text()


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("vllm:prompt_tokens_total", 20),
        ("vllm:generation_tokens_total", 44),
        ("vllm:num_requests_running", 1),
        ("vllm:num_requests_waiting", 0),
        ('vllm:request_success_total{finished_reason="length"}', 4),
        ('loratorio_engine_refused_total{code="invalid"}', 1),
        ("loratorio_engine_adapters_resident", 2),
        ("loratorio_engine_adapter_loads_total", 2),
        ('loratorio_engine_pages{held_by="adapter"}', 5),
        ('loratorio_engine_pages{held_by="kv"}', 2),
        ('loratorio_engine_pages{held_by="prefix"}', 9),
        ('loratorio_engine_pages{held_by="nobody"}', 8),
    ],
)
def test_counts_what_happened(text: str, sample: str, expected: float) -> None:
    assert value(text, sample) == expected


def test_the_share_of_pages_in_use_has_vllms_name(text: str) -> None:
    assert value(text, "vllm:kv_cache_usage_perc") == pytest.approx(7 / 24)


def test_mixed_passes_are_fewer_than_passes(text: str) -> None:
    mixed = value(text, "loratorio_engine_mixed_passes_total")
    assert 0 < mixed < value(text, "loratorio_engine_passes_total")


def test_preemptions_are_counted_under_both_names(text: str) -> None:
    ours = value(text, "loratorio_engine_num_preemptions_total")
    assert ours == value(text, "vllm:num_preemptions_total")


def test_no_tenant_appears(text: str) -> None:
    assert "secret-tenant" not in text
