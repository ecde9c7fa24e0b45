"""Whether this gateway can answer: engines, the usage log, and how old its view of things is."""

from collections.abc import Callable
from typing import Any

from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Member

STALE_SECONDS = 60.0  # a view older than this may still honour a revoked key: send nobody here
DEGRADED = "degraded: a local share of rates, nothing new against budgets"


class Health:
    """Belongs to one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        snapshot_age: Callable[[], float],
        *,
        records: Callable[[], bool] = lambda: True,
        shared_limits: Callable[[], bool] = lambda: True,
    ) -> None:
        """``snapshot_age``: seconds since the database last confirmed what we know.

        ``records``: the disk takes usage. ``shared_limits``: gateways count together; where they
        do not each counts a share, and goes on.
        """
        self._fleet = fleet
        self._snapshot_age = snapshot_age
        self._records = records
        self._shared_limits = shared_limits
        self.stopping = False  # set when the process is asked to end

    @property
    def ready(self) -> bool:
        fresh = self._snapshot_age() < STALE_SECONDS
        return bool(self._fleet.ready) and fresh and self._records() and not self.stopping

    def report(self) -> dict[str, Any]:
        """For /readyz: what a load balancer's owner wants to see, and no tenant's facts."""
        return {
            "ready": self.ready,
            "stopping": self.stopping,
            "usage_log": "written" if self._records() else "refused by the disk",
            "limits": "shared" if self._shared_limits() else DEGRADED,
            "snapshot_age_seconds": round(self._snapshot_age(), 3),
            "engines": [
                {"engine": number, "up": not _trouble(member), "state": _trouble(member) or "up"}
                for number, member in enumerate(self._fleet.members)
            ],
        }

    def state(self) -> dict[str, Any]:
        """For the page: the engines as a visitor may see them."""
        return {"ready": self.ready, "engines": [_engine(m) for m in self._fleet.members]}


def _trouble(member: Member) -> str:
    """Without addresses: anybody may read it."""
    if member.unfit:
        return member.unfit
    if member.draining:
        return "draining: it finishes what it has"
    if not member.takes:
        return "unreachable"
    return "late: its loop has not answered for a while" if member.late else ""


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
