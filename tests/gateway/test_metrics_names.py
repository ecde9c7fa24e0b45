"""Digests and tenants of an engine's page get the names an operator knows."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.protocol import AdapterRef
from gateway.catalog.bases import Bases, ServedBase
from gateway.catalog.catalogue import AdapterEntry, AliasEntry, Catalogue
from gateway.metrics import Metrics
from gateway.metrics_names import Names

A, B, UNKNOWN = "a" * 64, "b" * 64, "c" * 64
ACME, NOBODY = "1" * 32, "2" * 32
PAGE = f"""\
# HELP vllm:lora_requests_info Adapters of running and waiting requests
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{{running_lora_adapters="{A},{UNKNOWN}",waiting_lora_adapters="{B}"}} 1.0
# TYPE loratorio_engine_adapter_pages gauge
loratorio_engine_adapter_pages{{adapter="{A}"}} 3.0
loratorio_engine_adapter_pages{{adapter="{UNKNOWN}"}} 2.0
# TYPE loratorio_engine_tenant_running gauge
loratorio_engine_tenant_running{{tenant="{ACME}"}} 1.0
loratorio_engine_tenant_running{{tenant="{NOBODY}"}} 1.0
loratorio_engine_tenant_running{{tenant="other"}} 1.0
"""


def entry(name: str, version: int, digest: str) -> AdapterEntry:
    return AdapterEntry(
        id=f"adp_{name}{version}", project="prj_1", project_name="acme", name=name,
        version=version, adapter=AdapterRef(digest, 8), created=1,
    )  # fmt: skip


def samples() -> dict[str, list[dict[str, str]]]:
    entries = [entry("sql", 1, A), entry("sql", 2, B)]
    aliases = [AliasEntry(project="prj_1", name="prod", adapter_id="adp_sql1")]
    catalogue = Catalogue(Bases([ServedBase("base")]), 1, entries, aliases)
    projects = {ACME: ("prj_1", 'the "acme"')}
    told = Names(catalogue.names_of, projects.get).told(PAGE)
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(told):
        found[family.name] = [sample.labels for sample in family.samples]
    return found


def test_schedulers_read_every_name_that_clients_use():
    (labels,) = samples()["vllm:lora_requests_info"]
    assert labels["running_lora_adapters"] == f"prod,sql@1,{UNKNOWN}"
    assert labels["waiting_lora_adapters"] == "sql,sql@2"


def test_digests_stay_labels_and_are_explained_once():
    found = samples()
    assert [each["adapter"] for each in found["loratorio_engine_adapter_pages"]] == [A, UNKNOWN]
    assert found["loratorio_gateway_adapter_info"] == [{"adapter": A, "model": "prod"}]


def test_a_known_tenant_has_its_project():
    assert samples()["loratorio_gateway_tenant_info"] == [
        {"tenant": ACME, "project": "prj_1", "project_name": 'the "acme"'}
    ]


def test_projects_beyond_the_most_are_counted_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.metrics.MOST_CHILDREN", 3)
    metrics = Metrics()
    for number in range(10):
        metrics.count_tokens(f"prj_{number}", "base", prompt=1, cached=0, completion=2)
    text = metrics.text().decode()
    assert 'loratorio_gateway_tokens_total{kind="prompt",model="base",project="prj_2"} 1.0' in text
    other = 'loratorio_gateway_tokens_total{kind="prompt",model="other",project="other"} 7.0'
    assert other in text
