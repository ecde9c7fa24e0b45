"""The first page in a real browser: its numbers are the ledger's, and it is usable by everybody."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import OPERATOR, exact_usd

pytestmark = ON_THE_SESSIONS_LOOP


async def exact(page, name: str) -> str:
    found = await page.get_attribute(f"[data-name={name}]", "data-exact")
    assert found is not None
    return found


async def test_its_totals_are_the_sums_of_the_ledger(served, browser):
    begin = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=6)
    events = [e for e in served.world.events_of("acme") if e.started_at >= begin]
    async with browser.page("owner") as page:
        assert await exact(page, "requests") == f"{len(events):,}"
        assert await exact(page, "tokens-in") == f"{sum(e.prompt_tokens for e in events):,}"
        assert await exact(page, "tokens-out") == f"{sum(e.completion_tokens for e in events):,}"
        failed = sum(e.outcome == "failed" for e in events)
        assert await exact(page, "errors") == f"{failed:,}"
        nano = sum(e.cost_nano or 0 for e in events)
        assert await exact(page, "spend") == exact_usd(nano)


async def test_an_operator_sees_all_organisations_and_can_choose_one(served, browser):
    async with browser.page(OPERATOR, "?range=90d") as page:
        assert await exact(page, "requests") == f"{len(served.world.events):,}"
        await page.click("a.whose")
        await page.click("text=globex")
        assert "globex" in await page.inner_text(".whose")
        await page.click("text=90 days")
        count = len(served.world.events_of("globex"))
        assert await exact(page, "requests") == f"{count:,}"


async def test_another_organisation_is_a_page_that_does_not_exist(served, browser):
    globex = served.world.organisations["globex"]
    async with browser.page("owner", f"?org={globex}", status=404) as page:
        assert "There is no such page" in await page.inner_text("main")


@pytest.mark.parametrize("look", ["light", "dark", "narrow", "narrow-dark"])
async def test_it_is_accessible_however_it_is_looked_at(browser, look):
    narrow, dark = "narrow" in look, "dark" in look
    async with browser.page("owner", "?range=30d", narrow=narrow, dark=dark) as page:
        await page.wait_for_selector(".u-wrap canvas")
        await browser.shoot(page, f"overview-{look}")
        assert await audit(page) == []


async def test_a_day_in_another_zone_is_that_zones_day(served, browser):
    async with browser.page("owner") as page:
        await page.select_option("#zone", "Europe/Berlin")
        await page.wait_for_load_state()
        assert await page.input_value("#zone") == "Europe/Berlin"
        local = datetime.now(UTC).astimezone(ZoneInfo("Europe/Berlin"))
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        begin = (midnight - timedelta(days=6)).astimezone(UTC)
        events = [e for e in served.world.events_of("acme") if e.started_at >= begin]
        assert await exact(page, "requests") == f"{len(events):,}"


async def test_days_over_all_organisations_are_those_of_utc_and_it_says_so(served, browser):
    async with browser.page("operator", "/?range=7d&zone=Asia/Kathmandu", zone="UTC") as page:
        assert "Days are those of UTC" in await page.inner_text("main")
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        events = [e for e in served.world.events if e.started_at >= today - timedelta(days=6)]
        assert await exact(page, "requests") == f"{len(events):,}"
        assert await audit(page) == []
