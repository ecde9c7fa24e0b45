"""Who uses the engine, and which adapters: what each tenant and each adapter has and waits for.

Tenants are the opaque names that gateways gave them, adapters digests; few of either become
labels, see ``FewLabels``. Counters are told when something happens; how things stand is taken in
from time to time.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from prometheus_client import CollectorRegistry, Counter, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from engine.labels import OTHER, FewLabels
from engine.observer import Cause, Observer, Tier

TENANTS, ADAPTERS = 100, 200  # labels at a time
IDLE_S = 600.0  # until a label that was not heard of may go to somebody else
PREFIX = "loratorio_engine"


@dataclass(slots=True)
class TenantStanding:
    running: float = 0.0  # sequences
    waiting: float = 0.0
    pages: float = 0.0  # of KV, a shared one counted for each sequence that holds it
    service: float = 0.0  # the counter of fairness: the least is next


@dataclass(frozen=True, slots=True)
class AdapterStanding:
    tier: Tier
    pages: int
    running: int  # sequences


@dataclass(frozen=True, slots=True)
class Standing:
    tenants: Mapping[str, TenantStanding] = field(default_factory=dict)
    adapters: Mapping[str, AdapterStanding] = field(default_factory=dict)


class ShareMetrics(Observer, Collector):
    """Written by the engine loop, read by any thread."""

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._standing = Standing()
        self._tokens = self._counter(
            "tenant_prompt_tokens", "Prompt tokens; cached is part of all", ["tenant", "kind"]
        )
        self._waited = self._counter(
            "tenant_waited_seconds", "Sequences' waiting, by reason", ["tenant", "cause"]
        )
        self._all_waited = self._counter(
            "waited_seconds", "All sequences' waiting, by reason", ["cause"]
        )
        self._drafts = self._counter(
            "tenant_draft_tokens", "Tokens drafted; kept is part of all", ["tenant", "kind"]
        )
        self._yielded = self._counter("tenant_preemptions", "Sequences that yielded", ["tenant"])
        self._loads = Summary(
            f"{PREFIX}_adapter_load_seconds", "From asking for an adapter to having it in host "
            "memory", ["adapter"], registry=registry,
        )  # fmt: skip
        self._evicted = self._counter("adapter_evicted", "Times it left the pool", ["adapter"])
        self.tenants = FewLabels(TENANTS, idle_s=IDLE_S, clock=clock, forget=self._forget_tenant)
        self.adapters = FewLabels(ADAPTERS, idle_s=IDLE_S, clock=clock, forget=self._forget_adapter)
        for cause in Cause:
            self._all_waited.labels(cause.value)
        registry.register(self)

    def waited(self, tenant: str, cause: Cause, seconds: float) -> None:
        self._waited.labels(self.tenants.of(tenant), cause.value).inc(seconds)
        self._all_waited.labels(cause.value).inc(seconds)

    def found(self, tenant: str, *, prompt: int, cached: int) -> None:
        label = self.tenants.of(tenant)
        self._tokens.labels(label, "all").inc(prompt)
        self._tokens.labels(label, "cached").inc(cached)

    def verified(self, tenant: str, *, drafts: int, kept: int) -> None:
        label = self.tenants.of(tenant)
        self._drafts.labels(label, "all").inc(drafts)
        self._drafts.labels(label, "kept").inc(kept)

    def preempted(self, tenant: str) -> None:
        self._yielded.labels(self.tenants.of(tenant)).inc()

    def wanted(self, digest: str) -> None:
        self.adapters.of(digest)

    def loaded(self, digest: str, seconds: float, tier: Tier) -> None:
        self._loads.labels(self.adapters.of(digest)).observe(seconds)

    def evicted(self, digest: str) -> None:
        self._evicted.labels(self.adapters.of(digest)).inc()

    def stand(self, standing: Standing) -> None:
        """How things stand now. Tenants without a label of their own are added up."""
        named, others = dict[str, TenantStanding](), TenantStanding()
        for tenant, its in standing.tenants.items():
            if tenant in self.tenants:
                named[tenant] = its
            else:
                others.running += its.running
                others.waiting += its.waiting
                others.pages += its.pages
                others.service = max(others.service, its.service)
        if len(named) < len(standing.tenants):
            named[OTHER] = others
        self._standing = Standing(named, standing.adapters)

    def collect(self) -> Iterator[Metric]:
        standing = self._standing
        for attribute in fields(TenantStanding):
            name = f"{PREFIX}_tenant_{attribute.name}"
            family = GaugeMetricFamily(name, f"Its {attribute.name}", labels=["tenant"])
            for tenant, its in standing.tenants.items():
                family.add_metric([tenant], getattr(its, attribute.name))
            yield family
        tiers = GaugeMetricFamily(
            f"{PREFIX}_adapter_tier", "Where an adapter is", labels=["adapter", "tier"]
        )
        pages = GaugeMetricFamily(f"{PREFIX}_adapter_pages", "Its pages", labels=["adapter"])
        running = GaugeMetricFamily(
            f"{PREFIX}_adapter_running", "Sequences running with it", labels=["adapter"]
        )
        for digest, one in standing.adapters.items():
            tiers.add_metric([digest, one.tier.value], 1)
            pages.add_metric([digest], one.pages)
            running.add_metric([digest], one.running)
        yield from (tiers, pages, running)

    def _counter(self, name: str, help: str, labels: list[str]) -> Counter:
        return Counter(f"{PREFIX}_{name}", help, labels, registry=self._registry)

    def _forget_tenant(self, tenant: str) -> None:
        gone = (self._tokens, self._waited, self._drafts, self._yielded)
        _remove(gone, "tenant", tenant)

    def _forget_adapter(self, digest: str) -> None:
        _remove((self._loads, self._evicted), "adapter", digest)


def _remove(metrics: tuple[MetricWrapperBase, ...], label: str, value: str) -> None:
    for metric in metrics:
        metric.remove_by_labels({label: value})
