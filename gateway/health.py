"""Whether this gateway can answer: its engines, and how old its view of the database is."""

from collections.abc import Callable
from typing import Any

from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Member

STALE_SECONDS = 60.0  # a view older than this may still honour a revoked key: send nobody here


class Health:
    """Belongs to one event loop."""

    def __init__(self, fleet: Fleet, snapshot_age: Callable[[], float]) -> None:
        """``snapshot_age``: seconds since the database last confirmed what we know."""
        self._fleet = fleet
        self._snapshot_age = snapshot_age
        self.stopping = False  # set when the process is asked to end

    @property
    def ready(self) -> bool:
        fresh = self._snapshot_age() < STALE_SECONDS
        return bool(self._fleet.ready) and fresh and not self.stopping

    def report(self) -> dict[str, Any]:
        """For /readyz: what a load balancer's owner wants to see, and no tenant's facts."""
        return {
            "ready": self.ready,
            "stopping": self.stopping,
            "snapshot_age_seconds": round(self._snapshot_age(), 3),
            "engines": [
                {"engine": number, "up": member.client is not None}
                for number, member in enumerate(self._fleet.members)
            ],
        }

    def state(self) -> dict[str, Any]:
        """For the page: the engines as a visitor may see them."""
        return {"ready": self.ready, "engines": [_engine(m) for m in self._fleet.members]}


def _engine(member: Member) -> dict[str, Any]:
    welcome, load = member.welcome, member.last_load
    if welcome is None:
        return {"up": False}
    facts: dict[str, Any] = {
        "up": True,
        "architecture": welcome.base.architecture,
        "quantization": welcome.base.quantization,
        "dtype": welcome.base.dtype,
        "context": welcome.max_model_len,
    }
    if load is not None:
        facts["running"], facts["waiting"] = load.running, load.waiting
        facts["adapters_resident"] = len(load.resident)
        facts["pages_used"] = load.total_pages - load.free_pages
        facts["pages"] = load.total_pages
    return facts
