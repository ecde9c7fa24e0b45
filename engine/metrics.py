"""Every metric the engine exports, in its own registry; requests are never labels.

``loratorio_engine_…`` are this engine's own, by tenant and adapter in ``share_metrics``; what has
a name in vLLM is told in ``vllm_metrics`` too, so that dashboards and schedulers work unchanged.
Written by the engine loop, rendered by any thread.
"""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.course import Course
from engine.observer import Cause, Handed, Handoff, Observer, Tier
from engine.protocol import Finish
from engine.share_metrics import ShareMetrics
from engine.vllm_metrics import About, VllmMetrics

STEP_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
MASK_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
FEW = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)


class EngineMetrics(Observer):
    def __init__(
        self,
        num_pages: int,
        about: About | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_pages = num_pages
        self.registry = CollectorRegistry()
        self.vllm = VllmMetrics(self.registry, about or About())
        self.shares = ShareMetrics(self.registry, clock)
        self.page_bytes = 0  # of a page that goes from engine to engine
        self._passes = self._counter("loratorio_engine_passes", "Forward passes")
        self._failed = self._counter("loratorio_engine_failed_passes", "Passes that raised")
        self._mixed = self._counter(
            "loratorio_engine_mixed_passes", "Passes that served at least two of: adapters, base"
        )
        self._adapters = self._histogram(
            "loratorio_engine_adapters_per_pass", "Different adapters in a pass", FEW
        )
        self._sequences = self._histogram(
            "loratorio_engine_sequences_per_pass", "Sequences in a pass", FEW
        )
        self._step = self._histogram("loratorio_engine_step_seconds", "Pass duration", STEP_S)
        self._queue = self._histogram(
            "loratorio_engine_queue_seconds", "From arrival to the first pass", QUEUE_S
        )
        self._mask = self._histogram(
            "loratorio_engine_mask_wait_seconds", "What a pass waited for its masks", MASK_S
        )
        self._masked = self._counter("loratorio_engine_masked_draws", "Draws a grammar limited")
        self._prompt = self._counter("loratorio_engine_prompt_tokens", "Prompt tokens computed")
        self._generated = self._counter("loratorio_engine_generation_tokens", "Tokens generated")
        self._preemptions = self._counter(
            "loratorio_engine_num_preemptions", "Sequences that yielded their pages"
        )
        self._swapped = Counter(
            "loratorio_engine_swapped_pages", "Pages of sequences that yielded, copied to the host "
            "and back", ["direction"], registry=self.registry,
        )  # fmt: skip
        self._swap_used = self._gauge("loratorio_engine_swap_pages", "Pages swapped to the host")
        self._finished = Counter(
            "loratorio_engine_finished", "Choices ended", ["reason"], registry=self.registry
        )
        self._refused = Counter(
            "loratorio_engine_refused", "Requests refused", ["code"], registry=self.registry
        )
        pages = Gauge(
            "loratorio_engine_pages", "Pages of the pool", ["held_by"], registry=self.registry
        )
        self._pages_kv, self._pages_adapter = pages.labels("kv"), pages.labels("adapter")
        self._pages_prefix = pages.labels("prefix")  # computed, and in nobody's use just now
        self._pages_free = pages.labels("nobody")
        self._running = self._gauge("loratorio_engine_num_requests_running", "Sequences running")
        self._waiting = self._gauge("loratorio_engine_num_requests_waiting", "Sequences waiting")
        self._resident = self._gauge("loratorio_engine_adapters_resident", "Adapters in pages")
        self._loads = Counter(
            "loratorio_engine_adapter_loads", "Adapters asked for that were not in pages, by where "
            "they were", ["tier"], registry=self.registry,
        )  # fmt: skip
        self._evictions = self._counter("loratorio_engine_adapter_evictions", "Adapters evicted")
        self._load_s = Histogram(
            "loratorio_engine_load_seconds", "From asking for an adapter to having it in host "
            "memory, by where it was", ["tier"], buckets=QUEUE_S, registry=self.registry,
        )  # fmt: skip
        self._handed = Counter(
            "loratorio_engine_handoffs", "Prompts that one engine computed for another, by which "
            "side this was and how it ended", ["side", "outcome"], registry=self.registry,
        )  # fmt: skip
        self._handed_bytes = Counter(
            "loratorio_engine_handoff_bytes", "Of pages that went over", ["side", "by"],
            registry=self.registry,
        )  # fmt: skip
        self._handed_s = Histogram(
            "loratorio_engine_handoff_seconds", "From the first page wanted to the end", ["side"],
            buckets=QUEUE_S, registry=self.registry,
        )  # fmt: skip
        self._compiled = self._gauge(
            "loratorio_engine_kernels_compiled", "Kernels compiled since the engine was ready"
        )

    def watch(self, compiled: Callable[[], int]) -> None:
        """Ask for it whenever the metrics are read."""
        self._compiled.set_function(compiled)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def step(self, seconds: float, adapters: int, base: bool, sequences: int) -> None:
        """A pass ended, having served so many different adapters, and base rows or not."""
        self._passes.inc()
        self._step.observe(seconds)
        self._adapters.observe(adapters)
        self._sequences.observe(sequences)
        if adapters + base >= 2:
            self._mixed.inc()

    def failed_step(self) -> None:
        self._failed.inc()

    def queued(self, seconds: float) -> None:
        self._queue.observe(seconds)

    def masked(self, seconds: float, draws: int) -> None:
        """A pass waited so long for the masks of so many draws."""
        self._mask.observe(seconds)
        self._masked.inc(draws)

    def tokens(self, *, prompt: int = 0, generated: int = 0) -> None:
        self._prompt.inc(prompt)
        self._generated.inc(generated)
        self.vllm.generated(generated)

    def finished(
        self, finish: Finish, course: Course, now: float, *, prompt: int, generated: int
    ) -> None:
        """A choice ended, with so many tokens generated."""
        self._finished.labels(finish.value).inc()
        self.vllm.finished(finish, course, now, prompt=prompt, generated=generated)

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def waited(self, tenant: str, cause: Cause, seconds: float) -> None:
        self.shares.waited(tenant, cause, seconds)

    def found(self, tenant: str, *, prompt: int, cached: int) -> None:
        self.vllm.found(prompt=prompt, cached=cached)
        self.shares.found(tenant, prompt=prompt, cached=cached)

    def verified(self, tenant: str, *, drafts: int, kept: int) -> None:
        self.vllm.verified(drafts=drafts, kept=kept)
        self.shares.verified(tenant, drafts=drafts, kept=kept)

    def preempted(self, tenant: str) -> None:
        self._preemptions.inc()
        self.vllm.preempted()
        self.shares.preempted(tenant)

    def swapped(self, *, used: int, out: int = 0, back: int = 0) -> None:
        self._swapped.labels("out").inc(out)
        self._swapped.labels("back").inc(back)
        self._swap_used.set(used)

    def handed(self, handoff: Handoff) -> None:
        side = handoff.side.value
        self._handed.labels(side, handoff.outcome.value).inc()
        way = "direct" if handoff.direct else "tcp"
        self._handed_bytes.labels(side, way).inc(handoff.pages * self.page_bytes)
        if handoff.outcome is Handed.DONE:
            self._handed_s.labels(side).observe(handoff.seconds)

    def wanted(self, digest: str) -> None:
        self.shares.wanted(digest)

    def loaded(self, digest: str, seconds: float, tier: Tier) -> None:
        self._loads.labels(tier.value).inc()
        self._load_s.labels(tier.value).observe(seconds)
        self.shares.loaded(digest, seconds, tier)

    def evicted(self, digest: str) -> None:
        self._evictions.inc()
        self.shares.evicted(digest)

    def state(
        self,
        *,
        running: int,
        waiting: int,
        free_pages: int,
        resting_pages: int,
        kv_pages: int,
        adapter_pages: int,
        adapters: int,
        usable_pages: int,
    ) -> None:
        """How things stand. Usable pages are free, or what rests in them can be evicted."""
        self._pages_kv.set(kv_pages)
        self._pages_adapter.set(adapter_pages)
        self._pages_prefix.set(resting_pages)
        self._pages_free.set(free_pages)
        self._resident.set(adapters)
        self._running.set(running)
        self._waiting.set(waiting)
        usage = 1 - usable_pages / self._num_pages
        self.vllm.state(running=running, waiting=waiting, usage=usage)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(name, help, registry=self.registry)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help, buckets=buckets, registry=self.registry)
