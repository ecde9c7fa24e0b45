"""Every metric the engine exports, in its own registry; tenants and requests are never labels.

Common ones also carry the names vLLM gives them, so that its dashboards work unchanged.
Written by the engine loop, rendered by any thread.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.protocol import Finish

STEP_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
FEW = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)


class EngineMetrics:
    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._registry = CollectorRegistry()
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
        self._prompt = self._both("prompt_tokens", "Prompt tokens computed")
        self._generated = self._both("generation_tokens", "Tokens generated")
        self._preemptions = self._both("num_preemptions", "Sequences that yielded their pages")
        self._finished = Counter(
            "loratorio_engine_finished", "Choices ended", ["reason"], registry=self._registry
        )
        self._success = Counter(
            "vllm:request_success", "Choices ended well", ["finished_reason"],
            registry=self._registry,
        )  # fmt: skip
        self._refused = Counter(
            "loratorio_engine_refused", "Requests refused", ["code"], registry=self._registry
        )
        pages = Gauge(
            "loratorio_engine_pages", "Pages of the pool", ["held_by"], registry=self._registry
        )
        self._pages_kv, self._pages_adapter = pages.labels("kv"), pages.labels("adapter")
        self._pages_prefix = pages.labels("prefix")  # computed, and in nobody's use just now
        self._pages_free = pages.labels("nobody")
        self._running = self._gauges("num_requests_running", "Sequences running")
        self._waiting = self._gauges("num_requests_waiting", "Sequences waiting")
        self._usage = self._gauges("kv_cache_usage_perc", "Share of the pool's pages held, 0..1")
        self._resident = self._gauge("loratorio_engine_adapters_resident", "Adapters in pages")
        self._loads = self._counter("loratorio_engine_adapter_loads", "Adapters loaded to host")
        self._evictions = self._counter("loratorio_engine_adapter_evictions", "Adapters evicted")
        self._compiled = self._gauge(
            "loratorio_engine_kernels_compiled", "Kernels compiled since the engine was ready"
        )

    def watch(self, compiled: Callable[[], int]) -> None:
        """Ask for it whenever the metrics are read."""
        self._compiled.set_function(compiled)

    def text(self) -> str:
        return generate_latest(self._registry).decode()

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

    def tokens(self, *, prompt: int = 0, generated: int = 0) -> None:
        for counter in self._prompt:
            counter.inc(prompt)
        for counter in self._generated:
            counter.inc(generated)

    def finished(self, reason: Finish) -> None:
        self._finished.labels(reason.value).inc()
        if reason in (Finish.STOP, Finish.LENGTH):
            self._success.labels(reason.value).inc()

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def moved(self, *, preemptions: int, loads: int, evictions: int) -> None:
        """Happened since the last call."""
        for counter in self._preemptions:
            counter.inc(preemptions)
        self._loads.inc(loads)
        self._evictions.inc(evictions)

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
    ) -> None:
        """How things stand."""
        self._pages_kv.set(kv_pages)
        self._pages_adapter.set(adapter_pages)
        self._pages_prefix.set(resting_pages)
        self._pages_free.set(free_pages)
        self._resident.set(adapters)
        for gauges, value in (
            (self._running, running),
            (self._waiting, waiting),
            (self._usage, 1 - (free_pages + resting_pages) / self._num_pages),
        ):
            for gauge in gauges:
                gauge.set(value)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(name, help, registry=self._registry)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help, buckets=buckets, registry=self._registry)

    def _both(self, name: str, help: str) -> tuple[Counter, Counter]:
        return self._counter(f"loratorio_engine_{name}", help), self._counter(f"vllm:{name}", help)

    def _gauges(self, name: str, help: str) -> tuple[Gauge, Gauge]:
        return self._gauge(f"loratorio_engine_{name}", help), self._gauge(f"vllm:{name}", help)
