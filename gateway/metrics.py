"""Every metric the gateway exports, on a registry of its own.

Children are looked up once per request, never per chunk.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gateway.counter import Count, Counter, Level
from gateway.histogram import Histogram, Series

PREFIX = "loratorio_gateway"
FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
MOST_CHILDREN = 2_000  # projects and models told apart; the rest is one
OTHER = "other"
SINK_STATES = ("held", "pending", "taken", "refused", "uncertain")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShown:
    """Nano-dollars of the running period."""

    level: str
    subject: str
    model: str  # "": all
    period: str
    spent: int  # what open requests reserve too
    limit: int


class Metrics:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._answers = Counter(
            f"{PREFIX}_answers", "Answers by route and status.", ["route", "status"], registry
        )  # fmt: skip
        self._broken = Counter(
            f"{PREFIX}_broken_answers", "Answers that had begun when a failure ended them.", (),
            registry,
        ).of()  # fmt: skip
        self._outcomes = Counter(
            f"{PREFIX}_requests", "Admitted requests by how they ended.", ["endpoint", "outcome"],
            registry,
        )  # fmt: skip
        self._tokens = Counter(
            f"{PREFIX}_tokens", "Tokens; cached is part of prompt.", ["project", "model", "kind"],
            registry,
        )  # fmt: skip
        self._first = Histogram(
            f"{PREFIX}_time_to_first_token_seconds", "From admission to the first tokens.",
            "endpoint", SLOW, registry,
        )  # fmt: skip
        self._between = Histogram(
            f"{PREFIX}_inter_token_latency_seconds", "Between tokens that came one after another.",
            "endpoint", FAST, registry,
        )  # fmt: skip
        self._whole = Histogram(
            f"{PREFIX}_request_duration_seconds", "From admission to the end.",
            "endpoint", SLOW, registry,
        )  # fmt: skip
        self.inflight = Level(
            f"{PREFIX}_requests_inflight", "Admitted and not ended.", (), registry
        ).of()
        self.engines_ready = Gauge(
            f"{PREFIX}_engines_ready", "Engines that can be reached.", registry=registry
        )
        self.batches = Gauge(
            f"{PREFIX}_batches_running", "Batches this gateway works on.", registry=registry
        )
        self.limits_degraded = Gauge(
            f"{PREFIX}_limits_degraded", "1: the shared limit store does not answer.",
            registry=registry,
        )  # fmt: skip
        self.local_grants = Gauge(
            f"{PREFIX}_limits_local_grants", "Requests admitted from the local share so far.",
            registry=registry,
        )  # fmt: skip
        self.reserved = Gauge(
            f"{PREFIX}_requests_reserving", "Open requests that hold limits or money.",
            registry=registry,
        )  # fmt: skip
        self.faults = Counter(
            f"{PREFIX}_unexpected_errors", "Faults of our own code, answered with 500.",
            (), registry,
        ).of()  # fmt: skip
        self._deliveries = Gauge(
            f"{PREFIX}_sink_deliveries", "Deliveries to billing systems by what became of them.",
            ["sink", "state"], registry=registry,
        )  # fmt: skip
        self._drift = Gauge(
            f"{PREFIX}_ledger_differences", "Sums of the last hours in which the books differ.",
            registry=registry,
        )  # fmt: skip
        self._drift_at = Gauge(
            f"{PREFIX}_ledger_checked_timestamp_seconds", "When the books were looked at last.",
            registry=registry,
        )  # fmt: skip
        budget = ["level", "subject", "model", "period"]
        self._spent = Gauge(
            f"{PREFIX}_budget_spent_nano_usd", "Spent and reserved of a budget's period.", budget,
            registry=registry,
        )  # fmt: skip
        self._budget = Gauge(
            f"{PREFIX}_budget_nano_usd", "What a budget's period may come to.", budget,
            registry=registry,
        )  # fmt: skip
        self._answered: dict[tuple[str, int], Count] = {}  # those of routes and statuses met
        self._token_counters: dict[tuple[str, str], tuple[Count, ...]] = {}

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def show_drift(self, differences: int, at: float) -> None:
        self._drift.set(differences)
        self._drift_at.set(at)

    def show_budgets(self, budgets: Iterable[BudgetShown]) -> None:
        """These and no others."""
        self._spent.clear()
        self._budget.clear()
        for each in budgets:
            labels = (each.level, each.subject, each.model, each.period)
            self._spent.labels(*labels).set(each.spent)
            self._budget.labels(*labels).set(each.limit)

    def show_sink(self, sink: str, states: Mapping[str, tuple[int, int]]) -> None:
        for state in SINK_STATES:
            self._deliveries.labels(sink, state).set(states.get(state, (0, 0))[0])

    def count_answer(self, route: str, status: int, *, broken: bool = False) -> None:
        """Broken: the status had gone out before the failure."""
        counted = self._answered.get((route, status))
        if counted is None:
            counted = self._answered[route, status] = self._answers.of(route, str(int(status)))
        counted.total += 1
        if broken:
            self._broken.total += 1

    def count_tokens(
        self, project: str, model: str, *, prompt: int, cached: int, completion: int
    ) -> None:
        counters = self._token_counters_of(project, model)
        for counter, number in zip(counters, (prompt, cached, completion), strict=True):
            counter.total += number

    def timing(self, endpoint: str) -> "Timing":
        return Timing(
            first=self._first.of(endpoint),
            between=self._between.of(endpoint),
            whole=self._whole.of(endpoint),
        )

    def count_outcome(self, endpoint: str, outcome: str) -> None:
        self._outcomes.of(endpoint, outcome).total += 1

    def _token_counters_of(self, project: str, model: str) -> tuple[Count, ...]:
        """Of this project and model; of all others together once there are too many."""
        counters = self._token_counters.get((project, model))
        if counters is None and len(self._token_counters) < MOST_CHILDREN:
            counters = self._token_children(project, model)
            self._token_counters[project, model] = counters
        return counters or self._token_children(OTHER, OTHER)

    def _token_children(self, project: str, model: str) -> tuple[Count, ...]:
        kinds = ("prompt", "cached", "completion")
        return tuple(self._tokens.of(project, model, kind) for kind in kinds)


class Timing:
    """The stopwatch of one request."""

    __slots__ = ("_began", "_between", "_first", "_first_at", "_last", "_whole", "whole")

    def __init__(self, *, first: Series, between: Series, whole: Series) -> None:
        self._first, self._between, self._whole = first, between, whole
        self._began = time.monotonic()
        self._last = 0.0
        self._first_at = 0.0
        self.whole = False  # what arrives is looked at together

    @property
    def first_ns(self) -> int:
        """0: nothing has arrived."""
        return round((self._first_at - self._began) * 1e9) if self._first_at else 0

    def token_ns(self, tokens: int) -> int:
        """The mean between so many that came one after another; 0: they all came at once."""
        return round((self._last - self._first_at) * 1e9 / (tokens - 1)) if tokens > 1 else 0

    def heard(self, outputs: int = 1) -> None:
        """So many outputs have arrived. Of a whole answer nobody looked when each did: they came
        at even distances."""
        now = time.monotonic()
        if self._last:
            times = outputs if self.whole else 1
            self._between.observe((now - self._last) / times, times)
        else:
            self._first.observe(now - self._began)
            self._first_at = now
        self._last = now

    def finished(self) -> None:
        self._whole.observe(time.monotonic() - self._began)
