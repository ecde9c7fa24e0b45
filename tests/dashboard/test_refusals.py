"""What was refused stands in the request log among the requests, and in the quotas, alike."""

import csv
import io
import time
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from sqlalchemy import delete, select

from gateway.dashboard.request_log import RequestLog, place_of, sought, written
from gateway.errors import Bound, BudgetExhausted, InvalidRequest, ModelNotFound, RequestsLimited
from gateway.refusals.keeper import RefusalKeeper
from gateway.refusals.models import Refusal
from gateway.refusals.repository import RefusalRepository
from gateway.refusals.tally import Tally
from gateway.usage.report_repository import Window
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import BASE, OPERATOR

pytestmark = ON_THE_SESSIONS_LOOP
FLOOD = 240


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def refused(served):
    """Of acme's web key: a flood of 429s, and a few of other kinds; one of globex."""
    world, at = served.world, time.time() - 5
    await nothing(world.database)
    keeper = RefusalKeeper(world.database, Tally(lambda: at))  # all within one minute
    tally = keeper.tally
    who = served.snapshot.holder(world.keys["acme/web"])
    other = served.snapshot.holder(world.keys["globex/app"])
    limit = Bound("key", who.key, "requests per minute")
    customer = Bound("customer", f"{who.project}/grace", "tokens per minute on support")
    for number in range(FLOOD):
        error = RequestsLimited("no", retry_after=12.4, bound=limit)
        tally.note(who, error, endpoint="chat.completions", model=BASE, request=f"req_f{number}")
    spent = Bound("project", who.project, "money per month")
    for error, model, request in (
        (RequestsLimited("no", retry_after=3.0, bound=customer), "support", "req_customer"),
        (BudgetExhausted("no", code="project_spend_limit_exceeded", bound=spent), BASE, "req_gone"),
        (ModelNotFound("suport"), "suport", "req_typo"),
        (InvalidRequest("no", param="messages[0].role"), BASE, "req_field"),
    ):
        tally.note(who, error, endpoint="chat.completions", model=model, request=request)
    tally.note(other, ModelNotFound("x"), endpoint="embeddings", model="x", request="req_theirs")
    await keeper.flush()
    yield FLOOD + 4
    await nothing(world.database)


async def nothing(database):
    async with database.unit_of_work() as session:
        await session.execute(delete(Refusal))


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_they_stand_among_the_requests(browser, served, refused, look):
    async with browser.page(
        "developer", "/requests", narrow=look == "narrow", dark=look == "dark"
    ) as page:
        flood = page.locator("tr[data-refused='429']", has_text="240 times")
        told = " ".join((await flood.inner_text()).split())
        assert "rate_limit_exceeded" in told
        assert "Limit of key web-key" in told
        assert "requests per minute" in told
        assert "told to wait 12.40 s" in told
        assert await page.locator("tr[data-id]").count() > 0
        assert "web / grace" in await page.inner_text("table.log")
        assert "messages[0].role" in await page.inner_text("tr[data-refused='400']")
        assert "req_theirs" not in await page.content()
        await browser.shoot(page, f"refusals-{look}")
        assert await audit(page) == []


@pytest.mark.parametrize(
    ("status", "lines"), [("refused", 5), ("429", 3), ("404", 1), ("503", 0), ("admitted", 0)]
)
async def test_they_are_filtered_by_status(browser, served, refused, status, lines):
    async with browser.page("owner", "/requests?range=7d") as page:
        await page.select_option("#f-status", status)
        await page.click(".asked button.main")
        assert f"status={status}" in page.url
        assert await page.locator("tr[data-refused]").count() == lines
        assert bool(await page.locator("tr[data-id]").count()) == (status == "admitted")


async def test_one_is_found_by_its_id_and_others_see_it_not(browser, http, served, refused):
    async with browser.page("owner", f"/requests?request=req_f{FLOOD - 1}") as page:
        facts = await page.inner_text("section[data-request]")
        assert "240 times" in facts
        assert "key web-key" in facts
        await browser.shoot(page, "refusals-one")
        assert await audit(page) == []
    http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
    for foreign in ("req_theirs", "req_f3"):
        assert (await http.get("/requests", params={"request": foreign})).status_code == 404
    http.cookies.set("loratorio-sign-in", await served.cookie(OPERATOR))
    org = served.world.organisations["globex"]
    seen = await http.get("/requests", params={"request": "req_theirs", "org": org})
    assert seen.status_code == 200


async def test_quotas_and_the_log_agree_on_who_is_throttled(browser, served, refused):
    async with browser.page("developer", "/quotas") as page:
        shown = await page.get_attribute("[data-name=refused]", "data-exact")
        told = await page.inner_text("section:has(h2:text-is('Who is refused'))")
    assert "web / grace" in told
    async with served.world.database.reading() as session:
        found = await session.scalars(
            select(Refusal).where(
                Refusal.level != "", Refusal.organisation_id == served.world.organisations["acme"]
            )
        )
        assert shown == str(sum(row.times for row in found))
        foreign = RefusalRepository(session, served.world.organisations["globex"])
        assert await foreign.throttled(served.world.events[0].started_at) == []


async def test_the_file_has_both_and_every_count(http, served, refused):
    http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
    answer = await http.get("/requests", params={"range": "7d", "format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    turned_away = [row for row in rows if row["status"].isdigit()]
    assert sum(int(row["times"]) for row in turned_away) == refused
    flood = next(row for row in turned_away if row["times"] == str(FLOOD))
    assert (flood["limit_level"], flood["limit_on"], flood["wait_seconds"]) == (
        "key", "requests per minute", "12.400",
    )  # fmt: skip
    mine = {e.id: e for e in served.world.events_of("acme")}
    admitted = [row for row in rows if not row["status"].isdigit()]
    assert admitted
    assert all(int(r["cost_nano_usd"]) == mine[r["request_id"]].cost_nano for r in admitted)
    began = [row["began"] for row in rows]
    assert began == sorted(began, reverse=True)


async def test_pages_of_both_follow_one_another_without_a_gap_or_a_double(served, refused):
    now = datetime.now(UTC)
    what = sought({}, Window(now - timedelta(days=2), now))
    async with served.world.database.reading() as session:
        log = RequestLog(session, served.world.organisations["acme"])
        whole = [row.id for row in await log.newest_first(10_000, what)]
        found, after = [], None
        while page := await log.newest_first(7, what, after=after):
            found += [row.id for row in page]
            after = place_of(written(page[-1]))
    assert found == whole
    assert len(set(whole)) == len(whole)
    assert sum(row.startswith("refusal_") for row in whole) == 5
    assert len(whole) > 20
