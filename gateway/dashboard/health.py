"""``/dashboard/health``: what this gateway stands on, and whether the books agree."""

from typing import Any

from gateway.dashboard.books import Checked
from gateway.dashboard.page import OPERATORS, Page
from gateway.dashboard.visit import Visit
from gateway.health import STALE_SECONDS
from gateway.usage.reconcile import MOST_TOLD
from gateway.usage.rollup_repository import RollupRepository

NOW = "now"


async def health(visit: Visit) -> dict[str, Any]:
    sources = visit.sources
    state, report = sources.health.state(), sources.health.report()
    engines = [
        {"number": number, "name": member.name, **facts}
        for number, (member, facts) in enumerate(
            zip(sources.fleet.members, state["engines"], strict=True)
        )
    ]
    checked: Checked | None = sources.books.last
    if visit.query.get("check") == NOW:
        checked = await sources.books.check()
    return {
        "ready": report["ready"],
        "engines": engines,
        "up": sum(each["up"] for each in engines),
        "usage_log": report["usage_log"],
        "degraded": sources.limiter.degraded,
        "open": sources.limiter.open,
        "age_s": report["snapshot_age_seconds"],
        "stale": report["snapshot_age_seconds"] > STALE_SECONDS,
        "behind": await RollupRepository(visit.session).behind(),
        "checked": checked,
        "told": checked.findings.differences[:MOST_TOLD] if checked else [],
    }


HEALTH = Page(
    path="/health",
    title="Health",
    section="Operation",
    icon="heart",
    template="health.html",
    show=health,
    audiences=OPERATORS,
    is_personal=True,
)
