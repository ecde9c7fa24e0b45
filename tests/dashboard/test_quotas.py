"""Quotas as they are this moment: what admission counts is what is shown."""

import pytest
import pytest_asyncio
from sqlalchemy import delete

from gateway.errors import GatewayError
from gateway.limits.lease import Demand, Price
from gateway.limits.rules import Use
from gateway.refusals.models import Refusal
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import OPERATOR

pytestmark = ON_THE_SESSIONS_LOOP
PRICE = Price(input=2_500_000, cached_input=250_000, output=10_000_000)
DEMAND = Demand(price=PRICE, prompt=1_000, block=256, most=4_000)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def leases(served):
    """Requests of one key, until it is refused; settled when the tests end."""
    who = served.snapshot.holder(served.world.keys["acme/web"])
    held, refused = [], 0
    for number in range(7):
        try:
            use = Use("support", "ada")
            name = f"req_{number:032x}"
            held.append(await served.limiter.reserve(who, name, 1_200, use=use, demand=DEMAND))
        except GatewayError as error:
            served.refusals.tally.note(who, error, endpoint="chat.completions", model="support")
            refused += 1
    await served.refusals.flush()
    yield held, refused
    for lease in held:
        await served.limiter.settle(lease, 0)
    async with served.world.database.unit_of_work() as session:
        await session.execute(delete(Refusal))


async def row(page, limit: str) -> str:
    return " ".join((await page.inner_text(f'[data-limit="{limit}"]')).split())


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_headroom_reservations_and_refusals_are_those_of_admission(
    served, browser, leases, look
):
    held, refused = leases
    assert (len(held), refused) == (4, 3), "the key's limit is 4 a minute"
    async with browser.page(
        "developer", "/quotas", narrow=look == "narrow", dark=look == "dark"
    ) as page:
        assert await page.get_attribute("[data-name=open]", "data-exact") == "4"
        money = sum(lease.money for lease in held)
        assert await page.get_attribute("[data-name=reserved]", "data-exact") == (
            f"${money / 10**9:.9f}".rstrip("0")
        )
        assert (
            await row(page, "project concurrency")
            == "web Concurrent requests 4 4 8 as requests end"
        )
        assert "used up" in await row(page, "key requests_per_minute")
        assert "reserved by 4 open" in await row(page, "organisation money-month-UTC")
        assert "web / ada" in await row(page, "customer tokens_per_minute")
        told = await page.inner_text("section:has(h2:text-is('Who is refused'))")
        assert "web-key" in told
        assert "key" in told
        await browser.shoot(page, f"quotas-{look}")
        assert await audit(page) == []


async def test_it_asks_for_itself_again_and_shows_what_has_changed(served, browser, leases):
    held, _ = leases
    async with browser.page("owner", "/quotas") as page:
        assert await page.get_attribute("[data-name=open]", "data-exact") == "4"
        await served.limiter.settle(held[0], 0)
        await page.wait_for_selector("[data-name=open][data-exact='3']")
        assert await page.is_checked("[data-watches]")


async def test_an_operator_is_asked_whose_and_billing_is_not_shown_it(served, browser):
    async with browser.page(OPERATOR, "/quotas") as page:
        assert "/organisations" in page.url
        await page.click("text=globex")
        assert "Nothing is limited here" in await page.inner_text("main")
    async with browser.page("billing", "/quotas", status=403) as page:
        assert await page.locator("nav a", has_text="Quotas").count() == 0
