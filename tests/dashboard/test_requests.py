"""The request log: newest first, page by page, each meter's cost, and nobody else's requests."""

from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from gateway.dashboard.numbers import exact_usd, seconds
from gateway.dashboard.request_detail import meters_of
from gateway.dashboard.requests import PER_PAGE
from gateway.usage.event import Event, Kind
from gateway.usage.models import Price, UsageEvent
from gateway.usage.repository import LedgerRepository
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import BASE, World

pytestmark = ON_THE_SESSIONS_LOOP
LOOKS = ("light",)  # dark and narrow: test_request_texts.py


def newest_first(world: World, owner: str, days: int = 7) -> list[Event]:
    since = (datetime.now(UTC) - timedelta(days=days - 1)).replace(hour=0, minute=0, second=0,
                                                                   microsecond=0)  # fmt: skip
    mine = [e for e in world.events_of(owner) if e.started_at >= since and e.kind == Kind.USAGE]
    return sorted(mine, key=lambda e: (e.started_at, e.id), reverse=True)


def shown(page):
    return page.locator("tr[data-id]").evaluate_all("rows => rows.map((row) => row.dataset.id)")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def adjusted(served) -> Event:
    """A request of acme that was charged a tenth too much at first."""
    event = newest_first(served.world, "acme")[3]
    off = Event(**{
        **{name: getattr(event, name) for name in Event.__struct_fields__},
        "id": "adj_of_a_test", "kind": Kind.ADJUSTMENT, "outcome": "completed",
        "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0,
        "cost_nano": -(event.output_nano // 10), "input_nano": 0, "cached_nano": 0,
        "output_nano": -(event.output_nano // 10), "corrects": event.id,
        "corrected_price": event.price_id,
    })  # fmt: skip
    async with served.world.database.unit_of_work() as session:
        await LedgerRepository(session).add_events([off], "log_operator", 1)
    return event


@pytest.mark.parametrize("look", LOOKS)
async def test_it_is_accessible_however_it_is_looked_at(browser, served, adjusted, look):
    address = f"/requests?range=7d&request={adjusted.id}"
    async with browser.page("owner", address, narrow=look == "narrow", dark=look == "dark") as page:
        await browser.shoot(page, f"requests-{look}")
        assert await audit(page) == []


async def test_pages_follow_one_another_without_a_gap_or_a_double(browser, served):
    expected = [event.id for event in newest_first(served.world, "acme")]
    async with browser.page("owner", "/requests?range=7d") as page:
        found = await shown(page)
        assert len(found) == PER_PAGE
        while await page.locator("text=Older").count():
            await page.click("text=Older")
            found += await shown(page)
        assert found == expected
        await page.click("text=Newest")
        assert await shown(page) == expected[:PER_PAGE]


async def test_filters_narrow_it_down_and_the_address_keeps_them(browser, served):
    world = served.world
    mine = newest_first(world, "acme")
    async with browser.page("viewer", "/requests?range=7d") as page:
        await page.select_option("#f-project", label="batch")
        await page.fill("#f-model", BASE)
        await page.click(".asked button.main")
        wanted = [e.id for e in mine
                  if e.project_id == world.projects["acme/batch"] and e.model == BASE]  # fmt: skip
        assert await shown(page) == wanted[:PER_PAGE]
        assert f"project={world.projects['acme/batch']}" in page.url
        assert "range=7d" in page.url
    async with browser.page("viewer", "/requests?range=90d&status=failed") as page:
        failed = [e.id for e in newest_first(world, "acme", 90) if e.outcome == "failed"]
        assert failed
        assert await shown(page) == failed[:PER_PAGE]


async def test_one_request_tells_what_each_meter_cost(browser, served):
    event = next(e for e in newest_first(served.world, "acme") if e.cached_tokens)
    async with browser.page("billing", f"/requests?request={event.id}") as page:
        rows = await page.locator("tr[data-meter]").all_inner_texts()
        for text, tokens, nano in zip(
            rows,
            (event.prompt_tokens - event.cached_tokens, event.cached_tokens,
             event.completion_tokens),
            (event.input_nano, event.cached_nano, event.output_nano),
            strict=True,
        ):  # fmt: skip
            assert f"{tokens:,}" in text
            assert exact_usd(nano) in text
        assert await page.inner_text("[data-name=charged]") == exact_usd(event.cost_nano)
        facts = await page.inner_text(".facts")
        assert "chat.completions" in facts
        assert f"First token after\n{seconds(event.first_ns / 1e9)}\n" in facts


async def test_a_meters_price_is_told_for_a_million_tokens(served):
    event = newest_first(served.world, "acme")[0]
    facts = {name: getattr(event, name) for name in Event.__struct_fields__}
    price = Price(input_pico=2_500_000, cached_input_pico=250_000, output_pico=10_000_000)
    meters = meters_of(UsageEvent(**facts), (), price)
    assert [exact_usd(each.million_nano) for each in meters] == ["$2.5", "$0.25", "$10"]
    assert sum(each.cost_nano for each in meters) == event.cost_nano


async def test_an_adjusted_request_tells_both_costs(browser, adjusted):
    async with browser.page("owner", f"/requests?request={adjusted.id}") as page:
        assert await page.inner_text("[data-name=charged]") == exact_usd(adjusted.cost_nano)
        now = adjusted.cost_nano - adjusted.output_nano // 10
        assert await page.inner_text("[data-name=now]") == exact_usd(now)


async def test_another_organisations_request_is_as_one_that_does_not_exist(http, served):
    theirs = newest_first(served.world, "globex")[0].id
    http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
    answers = [await http.get("/requests", params={"request": r}) for r in (theirs, "req_none")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace(theirs, "X") == answers[1].text.replace("req_none", "X")
    http.cookies.set("loratorio-sign-in", await served.cookie("operator"))
    org = served.world.organisations["globex"]
    seen = await http.get("/requests", params={"request": theirs, "org": org})
    assert seen.status_code == 200
    assert theirs in seen.text


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("before=yesterday", "before"),
        ("before=9999999999999999999.req_1", "before"),
        ("before=1764500000000000.", "before"),
        ("status=ok", "status"),
    ],
)
async def test_a_wrong_address_is_refused_by_name(http, served, query, names):
    http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
    answer = await http.get(f"/requests?{query}")
    assert answer.status_code == 400
    assert names in answer.text
