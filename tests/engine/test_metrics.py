"""What the engine exports: its own names, those of vLLM beside them, and few labels."""

import pytest

from engine.metrics import EngineMetrics
from engine.vllm_metrics import About
from tests.engine.harness import Harness, config
from tests.engine.pages_of_metrics import Page
from tests.fakes.runner import build

VLLM = {
    "gauge": "num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc "
    "lora_requests_info cache_config_info",
    "histogram": "time_to_first_token_seconds time_per_output_token_seconds "
    "inter_token_latency_seconds e2e_request_latency_seconds request_queue_time_seconds "
    "request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds "
    "request_prompt_tokens request_generation_tokens",
    "counter": "prompt_tokens generation_tokens request_success num_preemptions "
    "prefix_cache_queries prefix_cache_hits",
}


@pytest.fixture(scope="module")
def page() -> Page:
    engine = Harness(config(max_num_seqs=4), build(num_pages=24))
    for i, adapter in enumerate(["", "a2", "b3", ""]):
        engine.submit(f"r{i}", [3] * 4, 10, adapter=adapter, tenant="alice")
    engine.submit("refused", [])
    engine.run()
    engine.clock.advance(1)
    engine.submit("open", [3] * 4, 20, tenant="bob", adapter="a2")
    engine.step(3)
    engine.clock.advance(1)
    engine.step()
    return Page(engine.metrics.text())


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in VLLM for n in VLLM[k].split()])
def test_every_metric_of_vllm_has_its_type_and_its_labels(page: Page, kind: str, name: str) -> None:
    assert page.kinds[f"vllm:{name}"] == kind
    ending = {"gauge": "", "histogram": "_count", "counter": "_total"}[kind]
    for labels, _ in page.samples(f"vllm:{name}{ending}"):
        assert {"model_name", "engine"} <= labels.keys()


@pytest.mark.parametrize(
    ("sample", "labels", "expected"),
    [
        ("vllm:prompt_tokens_total", {}, 20),
        ("vllm:generation_tokens_total", {}, 44),
        ("vllm:num_requests_running", {}, 1),
        ("vllm:num_requests_waiting", {}, 0),
        ("vllm:kv_cache_usage_perc", {}, pytest.approx(4 / 24)),
        ("vllm:gpu_cache_usage_perc", {}, pytest.approx(4 / 24)),
        ("vllm:request_success_total", {"finished_reason": "length"}, 4),
        ("vllm:prefix_cache_queries_total", {}, 20),
        ("loratorio_engine_refused_total", {"code": "invalid"}, 1),
        ("loratorio_engine_adapters_resident", {}, 2),
        ("loratorio_engine_adapter_loads_total", {"tier": "disk"}, 2),
        ("loratorio_engine_pages", {"held_by": "adapter"}, 5),
        ("loratorio_engine_pages", {"held_by": "kv"}, 2),
        ("loratorio_engine_adapter_tier", {"adapter": "a2", "tier": "device"}, 1),
        ("loratorio_engine_adapter_pages", {"adapter": "b3"}, 3),
        ("loratorio_engine_adapter_running", {"adapter": "a2"}, 1),
        ("loratorio_engine_adapter_load_seconds_count", {"adapter": "b3"}, 1),
        ("loratorio_engine_tenant_running", {"tenant": "bob"}, 1),
        ("loratorio_engine_tenant_pages", {"tenant": "bob"}, 2),
        ("loratorio_engine_tenant_prompt_tokens_total", {"tenant": "alice", "kind": "all"}, 16),
    ],
)
def test_counts_what_happened(page: Page, sample: str, labels: dict[str, str], expected: float):
    assert page.value(sample, **labels) == expected


def test_the_adapters_that_run_are_named_as_schedulers_read_them(page: Page) -> None:
    labels = page.labels("vllm:lora_requests_info")
    assert (labels["running_lora_adapters"], labels["waiting_lora_adapters"]) == ("a2", "")
    assert labels["max_lora"] == "4"


def test_mixed_passes_are_fewer_than_passes(page: Page) -> None:
    mixed = page.value("loratorio_engine_mixed_passes_total")
    assert 0 < mixed < page.value("loratorio_engine_passes_total")


def test_the_settings_of_the_cache_are_labels() -> None:
    about = About(model_name="base", engine="e1", cache={"block_size": "16", "num_gpu_blocks": "9"})
    page = Page(EngineMetrics(9, about).text())
    labels = {"model_name": "base", "engine": "e1", "block_size": "16", "num_gpu_blocks": "9"}
    assert page.value("vllm:cache_config_info", **labels) == 1


def test_latencies_are_taken_from_arrival_start_and_tokens() -> None:
    engine = Harness(config(max_num_seqs=1), build(num_pages=24))
    engine.submit("first", [3] * 4, 3)
    engine.submit("second", [3] * 4, 3)
    for _ in range(8):
        engine.step()
        engine.clock.advance(0.25)
    page = Page(engine.metrics.text())
    totals = {
        "time_to_first_token": 0.75,  # at once, and after three passes of the first
        "inter_token_latency": 4 * 0.25,
        "time_per_output_token": 4 * 0.25,
        "e2e_request_latency": 0.5 + 1.25,
        "request_queue_time": 0.75,
        "request_prefill_time": 0.0,
        "request_decode_time": 0.5 + 0.5,
        "request_inference_time": 0.5 + 0.5,
    }
    found = {name: page.value(f"vllm:{name}_seconds_sum") for name in totals}
    assert found == pytest.approx(totals)
    assert page.value("vllm:inter_token_latency_seconds_bucket", le="0.2") == 0
    assert page.value("vllm:inter_token_latency_seconds_bucket", le="0.3") == 4
    assert page.value("loratorio_engine_waited_seconds_total", cause="capacity") == 0.75


def test_waiting_for_an_adapter_is_told() -> None:
    parts = build(num_pages=16)
    parts.host.delay = 3
    engine = Harness(config(max_num_seqs=4), parts)
    engine.submit("cold", [3] * 4, 2, tenant="a", adapter="x1")
    for _ in range(6):
        engine.step()
        engine.clock.advance(1)
    page = Page(engine.metrics.text())
    assert page.value("loratorio_engine_tenant_waited_seconds_total", cause="adapter") == 3
    assert page.value("loratorio_engine_adapter_load_seconds_sum", adapter="x1") == 3


def test_loads_are_told_apart_by_where_the_adapter_was() -> None:
    engine = Harness(parts=build(num_pages=16))
    for adapter in ("a9", "b9", "a9"):  # two do not fit
        engine.submit("r", [3] * 4, 2, adapter=adapter)
        engine.run()
    engine.clock.advance(1)
    engine.step()
    page = Page(engine.metrics.text())
    loads = {
        t: page.value("loratorio_engine_adapter_loads_total", tier=t) for t in ("disk", "host")
    }
    assert loads == {"disk": 2, "host": 1}
    assert page.value("loratorio_engine_load_seconds_count", tier="host") == 1
    assert page.value("loratorio_engine_load_seconds_sum", tier="host") == 0
    assert page.value("loratorio_engine_adapter_tier", adapter="a9", tier="device") == 1
    assert page.value("loratorio_engine_adapter_tier", adapter="b9", tier="host") == 1


@pytest.mark.parametrize(
    ("tenant", "tokens", "cause"),
    [("flood", 20, "fairness"), ("other", 44, "pages")],  # 8 pages are a share, 16 are all
)
def test_waiting_for_a_share_and_for_pages_is_told_apart(tenant: str, tokens: int, cause: str):
    engine = Harness(config(max_num_batched_tokens=64, max_tenant_share=0.5), build(num_pages=16))
    engine.submit("long", [3] * 20, 12, tenant="flood")
    engine.step()
    engine.submit("more", list(range(4, 4 + tokens)), 2, tenant=tenant)
    for _ in range(4):
        engine.step()
        engine.clock.advance(1)
    engine.run()
    page = Page(engine.metrics.text())
    waited = "loratorio_engine_tenant_waited_seconds_total"
    assert page.value(waited, tenant=tenant, cause=cause) == 4


def test_ends_other_than_good_ones_have_reasons_too() -> None:
    engine = Harness()
    engine.submit("left", [3], 50)
    engine.submit("late", [4], 50, deadline_ms=10)
    engine.submit("bad", [5], 50)
    engine.parts.runner.poisoned = {5}
    engine.step()
    engine.cancel("left")
    engine.clock.advance(1)
    engine.step(2)
    page = Page(engine.metrics.text())
    success = "vllm:request_success_total"
    assert page.value(success, finished_reason="abort") == 2
    assert page.value(success, finished_reason="error") == 1


def test_a_thousand_tenants_and_adapters_make_few_series() -> None:
    engine = Harness(config(max_num_seqs=8), build(num_pages=64))
    for i in range(1000):
        engine.submit(f"r{i}", [3], 1, tenant=f"tenant-{i}", adapter=f"adapter{i}-1")
        engine.step()
    engine.run()
    engine.clock.advance(1)
    engine.step()
    page = Page(engine.metrics.text())
    prompts = page.samples("loratorio_engine_tenant_prompt_tokens_total")
    assert len({labels["tenant"] for labels, _ in prompts}) == 101
    assert sum(value for labels, value in prompts if labels["kind"] == "all") == 1000
    assert len(page.samples("loratorio_engine_adapter_load_seconds_count")) == 201
    assert len(page.samples("loratorio_engine_adapter_tier")) == 200


def test_a_label_nobody_uses_any_more_goes_to_the_next() -> None:
    engine = Harness()
    for i in range(101):
        engine.metrics.found(f"tenant-{i}", prompt=1, cached=0)
    engine.clock.advance(601)
    engine.metrics.found("late", prompt=5, cached=1)
    page = Page(engine.metrics.text())
    tokens = "loratorio_engine_tenant_prompt_tokens_total"
    assert page.value(tokens, tenant="late", kind="all") == 5
    assert page.value(tokens, tenant="other", kind="all") == 1
    assert not [labels for labels, _ in page.samples(tokens) if labels["tenant"] == "tenant-0"]
