"""Health is for operators; the books are checked on the page as the command checks them."""

import pytest
from sqlalchemy import update

from gateway.usage.models import UsageRollup
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import OPERATOR

pytestmark = ON_THE_SESSIONS_LOOP


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_the_books_agree_and_the_page_is_accessible(browser, look):
    async with browser.page(
        OPERATOR, "/health?check=now", narrow=look == "narrow", dark=look == "dark"
    ) as page:
        told = await page.inner_text("main")
        assert "no difference" in told
        assert "Quarters of an hour by project" in told
        await browser.shoot(page, f"health-{look}")
        assert await audit(page) == []


async def test_a_roll_up_that_drifted_is_told_with_its_place(served, browser):
    row = UsageRollup.project_id == served.world.projects["globex/app"]
    database = served.world.database
    async with database.unit_of_work() as session:
        await session.execute(
            update(UsageRollup).where(row).values(requests=UsageRollup.requests + 1)
        )
    try:
        async with browser.page(OPERATOR, "/health?check=now") as page:
            assert "differences" in await page.inner_text(".verdict")
            told = await page.inner_text("[aria-label=Differences]")
            assert served.world.projects["globex/app"] in told
            assert "-1" in told
    finally:
        async with database.unit_of_work() as session:
            await session.execute(
                update(UsageRollup).where(row).values(requests=UsageRollup.requests - 1)
            )


@pytest.mark.parametrize("who", ["owner", "billing", "viewer"])
async def test_it_is_not_for_tenants(served, http, who):
    http.cookies.set("loratorio-sign-in", await served.cookie(who))
    assert (await http.get("/health")).status_code == 403
