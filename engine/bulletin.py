"""What an engine tells of itself: gauges before every word, its load to gateways when it changed.

Belongs to the engine loop's thread.
"""

from typing import Generic

from engine.metrics import EngineMetrics
from engine.pages import Kind
from engine.protocol import Load
from engine.residency import P
from engine.scheduler import Scheduler
from engine.seating import Seating
from engine.standing import name_adapters, standing

LOAD_INTERVAL_S = 0.1


class Bulletin(Generic[P]):
    def __init__(
        self, scheduler: Scheduler[P], seating: Seating[P], metrics: EngineMetrics
    ) -> None:
        self._scheduler, self._seating, self._metrics = scheduler, seating, metrics
        self._told: Load | None = None
        self._told_at = self._stood = float("-inf")

    def show(self) -> None:
        """The state as it is, on the metrics."""
        pool = self._seating.pool
        self._metrics.state(
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            free_pages=pool.free_pages,
            resting_pages=pool.resting_pages,
            kv_pages=pool.holdings(Kind.KV),
            adapter_pages=pool.holdings(Kind.ADAPTER),
            adapters=self._seating.residency.count,
            usable_pages=self._seating.eviction.pages,
        )

    def news(self, now: float, *, draining: bool) -> Load | None:
        """The load, when it changed and the last one is old enough; and the metrics hear who has
        what."""
        if now - self._stood >= LOAD_INTERVAL_S:
            self._stood = now
            self._stand()
        if now - self._told_at < LOAD_INTERVAL_S:
            return None
        load = self._load(draining=draining)
        if load == self._told:
            return None
        self._told, self._told_at = load, now
        return load

    def is_told(self, *, draining: bool) -> bool:
        """Nothing changed since the last load that was told."""
        return self._told == self._load(draining=draining)

    def _load(self, *, draining: bool) -> Load:
        return Load(
            self._scheduler.running,
            self._scheduler.waiting,
            self._seating.eviction.pages,
            self._seating.pool.num_pages,
            self._seating.residency.resident,
            draining,
        )

    def _stand(self) -> None:
        shares = self._metrics.shares
        shares.stand(standing(self._scheduler, self._seating, shares.adapters))
        name_adapters(self._scheduler, self._metrics.vllm.adapters)
