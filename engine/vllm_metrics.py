"""What an engine tells under vLLM's names and with its meanings, for schedulers and dashboards.

Times are the engine's: from when a request reached it, gateways' work and the network apart.
A choice counts as a request, as its copies do there. Two names are told in two ways, an older and
a newer one. Adapters are named by digest: the engine knows no other name.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.course import Course
from engine.distribution import Distribution
from engine.protocol import Finish

FIRST_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
)  # fmt: skip
BETWEEN_S = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5,
    7.5, 10, 20, 40, 80,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

MOST_NAMED = 128  # adapters in one label

REASONS = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.GRANT: "abort",
    Finish.CANCELLED: "abort",
    Finish.DEADLINE: "abort",
    Finish.ERROR: "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The labels of every one of these metrics, and what does not change."""

    model_name: str = ""  # as clients name the base
    engine: str = "engine"
    max_num_seqs: int = 256
    cache: Mapping[str, str] = field(default_factory=dict)  # the settings of the page pool

    @property
    def labels(self) -> dict[str, str]:
        return {"model_name": self.model_name, "engine": self.engine}


class VllmMetrics:
    """Written by the engine loop, read by any thread."""

    def __init__(self, registry: CollectorRegistry, about: About) -> None:
        self._registry, self._labels = registry, about.labels
        self._running = self._gauge("num_requests_running", "Sequences running")
        self._waiting = self._gauge("num_requests_waiting", "Sequences waiting")
        usage = "Share of the pool's pages in use, 0 to 1"
        self._usage = self._gauge("kv_cache_usage_perc", usage)
        self._old_usage = self._gauge("gpu_cache_usage_perc", usage)
        self._prompt = self._counter("prompt_tokens", "Prompt tokens prefilled, cached ones too")
        self._generated = self._counter("generation_tokens", "Tokens generated")
        self._preemptions = self._counter("num_preemptions", "Sequences that yielded their pages")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked for")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found computed")
        self._drafts = self._counter("spec_decode_num_drafts", "Times drafts were verified")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens drafted")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafts that were kept")
        self._places = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Drafts kept, by their place",
            [*self._labels, "position"], registry=registry,
        )  # fmt: skip
        success = Counter(
            "vllm:request_success", "Requests ended, by how", [*self._labels, "finished_reason"],
            registry=registry,
        )  # fmt: skip
        values = tuple(self._labels.values())
        self._success = {why: success.labels(*values, REASONS[why]) for why in REASONS}
        self._first = self._spread("time_to_first_token_seconds", FIRST_S)
        self._between = self._spread(
            "inter_token_latency_seconds", BETWEEN_S, older="time_per_output_token_seconds"
        )
        self._whole = self._spread("e2e_request_latency_seconds", REQUEST_S)
        self._queued = self._spread("request_queue_time_seconds", REQUEST_S)
        self._prefill = self._spread("request_prefill_time_seconds", REQUEST_S)
        self._decode = self._spread("request_decode_time_seconds", REQUEST_S)
        self._inference = self._spread("request_inference_time_seconds", REQUEST_S)
        self._asked = self._spread("request_prompt_tokens", TOKENS)
        self._answered = self._spread("request_generation_tokens", TOKENS)
        self.adapters = AdaptersInfo(about)
        registry.register(self.adapters)
        registry.register(CacheInfo(about))

    def state(self, *, running: int, waiting: int, usage: float) -> None:
        self._running.set(running)
        self._waiting.set(waiting)
        self._usage.set(usage)
        self._old_usage.set(usage)

    def generated(self, tokens: int) -> None:
        self._generated.inc(tokens)

    def verified(self, *, drafts: int, kept: int) -> None:
        """A pass verified so many drafts of a sequence, and kept the first of them."""
        self._drafts.inc()
        self._drafted.inc(drafts)
        self._accepted.inc(kept)
        for place in range(kept):
            self._places.labels(*self._labels.values(), str(place)).inc()

    def preempted(self) -> None:
        self._preemptions.inc()

    def found(self, *, prompt: int, cached: int) -> None:
        self._queries.inc(prompt)
        self._hits.inc(cached)

    def prefilled(self, prompt: int, to_first_token_s: float) -> None:
        """A choice drew its first token."""
        self._prompt.inc(prompt)
        self._first.add(to_first_token_s)

    def between(self, seconds: float, times: int) -> None:
        """So many sequences drew a token so long after the one before."""
        self._between.add(seconds, times)

    def finished(
        self, finish: Finish, course: Course, now: float, *, prompt: int, generated: int
    ) -> None:
        self._success[finish].inc()
        if course.started is None:
            return
        self._whole.add(now - course.arrived)
        self._asked.add(prompt)
        self._answered.add(generated)
        for spread, seconds in (
            (self._queued, course.queued_s),
            (self._prefill, course.prefill_s),
            (self._decode, course.decode_s),
            (self._inference, course.inference_s),
        ):
            if seconds is not None:
                spread.add(seconds)

    def _gauge(self, name: str, help: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", help, list(self._labels), registry=self._registry)
        return gauge.labels(**self._labels)

    def _counter(self, name: str, help: str) -> Counter:
        counter = Counter(f"vllm:{name}", help, list(self._labels), registry=self._registry)
        return counter.labels(**self._labels)

    def _spread(
        self, name: str, buckets: Sequence[float], older: str | None = None
    ) -> Distribution:
        names = [name, older] if older else [name]
        texts = {f"vllm:{n}": n.replace("_", " ").capitalize() for n in names}
        spread = Distribution(texts, buckets, self._labels)
        self._registry.register(spread)
        return spread


class AdaptersInfo(Collector):
    """``vllm:lora_requests_info``: its labels are the news, its value the time they were so."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._names: tuple[Sequence[str], Sequence[str]] = ((), ())

    def set(self, running: Sequence[str], waiting: Sequence[str]) -> None:
        self._names = (running[:MOST_NAMED], waiting[:MOST_NAMED])

    def collect(self) -> Iterator[Metric]:
        running, waiting = self._names
        labels = {
            # There are no slots: each running sequence may have an adapter of its own.
            "max_lora": str(self._about.max_num_seqs),
            "running_lora_adapters": ",".join(running),
            "waiting_lora_adapters": ",".join(waiting),
        }
        yield _info(
            "vllm:lora_requests_info", "Adapters of running and waiting requests",
            self._about.labels | labels, time.time(),
        )  # fmt: skip


class CacheInfo(Collector):
    """``vllm:cache_config_info``"""

    def __init__(self, about: About) -> None:
        self._about = about

    def collect(self) -> Iterator[Metric]:
        labels = self._about.labels | dict(self._about.cache)
        yield _info("vllm:cache_config_info", "Settings of the page pool", labels, 1.0)


def _info(name: str, help: str, labels: Mapping[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, help, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
