"""``/dashboard/account``: a person's own password, browsers and zone."""

from functools import cache
from typing import Any
from zoneinfo import available_timezones

from gateway.dashboard.page import Page
from gateway.dashboard.visit import Visit
from gateway.identity.login_repository import LoginRepository


async def account(visit: Visit) -> dict[str, Any]:
    return {
        "browsers": await LoginRepository(visit.session).browsers(visit.viewer.login, visit.now),
        "zones": _zones(),
    }


@cache
def _zones() -> list[str]:
    """Hundreds of files say it."""
    return sorted(name for name in available_timezones() if "/" in name or name == "UTC")


ACCOUNT = Page(
    path="/account",
    title="Your account",
    section="",
    icon="key",
    template="account.html",
    show=account,
    is_personal=True,
)
