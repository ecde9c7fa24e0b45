"""The audit log: every change with who made it, by kind and by what was changed, page by page."""

from datetime import UTC, datetime

import pytest
import pytest_asyncio

from gateway.audit.service import Actor, AuditLog
from gateway.dashboard.audit import PER_PAGE
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit

pytestmark = ON_THE_SESSIONS_LOOP
COUNT = PER_PAGE + 7


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def changes(served):
    world = served.world
    for owner, count in (("acme", COUNT), ("globex", 1)):
        async with world.database.publish() as session:
            log = AuditLog(session, world.organisations[owner], datetime.now(UTC))
            for number in range(count):
                actor = Actor("api_key", world.keys["acme/web"])
                project = world.projects["acme/web"] if number % 2 else None
                change = {"number": number}
                await log.add(
                    "service_account.created", f"{owner}-{number}", actor=actor, project=project,
                    change=change,
                )  # fmt: skip


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, changes, look):
    narrow, dark = look == "narrow", look == "dark"
    async with browser.page("owner", "/audit", narrow=narrow, dark=dark) as page:
        await browser.shoot(page, f"audit-{look}")
        assert await audit(page) == []


async def test_changes_come_newest_first_page_by_page_and_only_ones_own(browser, changes):
    address = "/audit?type=service_account.created"
    async with browser.page("admin", address) as page:
        first = await page.locator("tbody tr").all_inner_texts()
        assert len(first) == PER_PAGE
        assert f"acme-{COUNT - 1}" in first[0]
        assert f"number {COUNT - 1}" in first[0]
        assert "web-key" in first[0]
        await page.click("text=Older")
        rest = await page.locator("tbody tr").all_inner_texts()
        assert len(rest) == COUNT - PER_PAGE
        assert "acme-0" in rest[-1]
        await page.click("text=Newest")
        await page.click("text=acme-3")
        assert await page.locator("tbody tr").count() == 1
        assert "globex" not in " ".join(first + rest)


async def test_who_may_not_read_it_does_not(browser):
    for role in ("developer", "billing", "viewer"):
        async with browser.page(role, "/audit", status=403):
            pass
