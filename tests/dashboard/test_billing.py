"""Months are those of the ledger, to the nano-dollar; prices are those in force, and one's own."""

from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from engine.protocol import AdapterRef
from gateway.catalog.service import CatalogService
from gateway.usage.service import PriceList
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import BASE, OPERATOR, exact_usd

pytestmark = ON_THE_SESSIONS_LOOP


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def priced(served):
    now = datetime.now(UTC)
    async with served.world.database.publish() as session:
        globex = served.world.projects["globex/app"]
        theirs = await CatalogService(session, globex, now).publish("secret", AdapterRef("d", 8))
        await session.flush()
        prices = PriceList(session, now)
        prices.set(BASE, ("9", "9", "9"), effective_from=now - timedelta(days=9))
        prices.set(BASE, ("2.5", "0.25", "10"))
        prices.set(BASE, ("3", "0.3", "12"), effective_from=now + timedelta(days=9))
        prices.set(None, ("77", "77", "77"), adapter_id=theirs.id)


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, priced, look):
    narrow, dark = look == "narrow", look == "dark"
    async with browser.page("billing", "/billing", narrow=narrow, dark=dark) as page:
        await browser.shoot(page, f"billing-{look}")
        assert await audit(page) == []


async def test_each_month_is_what_the_ledger_has_of_it(served, browser):
    sums: dict[str, int] = {}
    for event in served.world.events_of("acme"):
        name = f"{event.period:%Y-%m}"
        sums[name] = sums.get(name, 0) + (event.cost_nano or 0)
    async with browser.page("billing", "/billing") as page:
        for name, nano in sums.items():
            exact = await page.get_attribute(f'[data-month="{name}"] [data-exact]', "data-exact")
            assert exact == exact_usd(nano)


async def test_prices_are_those_in_force_and_to_come_and_no_one_elses(browser, priced):
    async with browser.page("billing", "/billing") as page:
        rows = await page.locator("[data-price]").all_inner_texts()
        assert len(rows) == 2
        assert "$2.5" in rows[0]
        assert "$0.25" in rows[0]
        assert "$10" in rows[0]
        assert "to come" in rows[1]
        assert "$77" not in await page.inner_text("main")
        assert "Sent to billing" not in await page.inner_text("main")
    async with browser.page(OPERATOR, "/billing") as page:
        text = await page.inner_text("main")
        assert "$77" in text
        assert "Nothing was sent" in text
        assert await audit(page) == []
