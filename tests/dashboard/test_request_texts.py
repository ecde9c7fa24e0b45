"""Texts on the page of requests: turned on, read by who may, erased, and all of that audited."""

from datetime import UTC, datetime

import pytest
import pytest_asyncio

from gateway.audit.repository import AuditRepository
from gateway.dashboard.cookies import token_of
from gateway.identity.models import Project
from gateway.texts.exchange import Exchange
from gateway.texts.keeper import TextKeeper
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.test_requests import newest_first
from tests.dashboard.world import BASE

pytestmark = ON_THE_SESSIONS_LOOP


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wanted(served):
    """The project web wants texts for a week, and two of its requests have them."""
    world = served.world
    web = world.projects["acme/web"]
    async with world.database.publish() as session:
        (await session.get(Project, web)).text_days = 7
    mine = [e for e in newest_first(world, "acme") if e.project_id == web][:2]
    keeper = TextKeeper(world.database, lambda base, tokens: "<b>What is love?</b>")
    for event, customer in zip(mine, ("ada", "bob"), strict=True):
        keeper.keep(Exchange(
            request=event.id, organisation=event.organisation_id, project=web, base=BASE,
            customer=customer, prompts=[[1]], answers=["Baby, don't hurt me."],
            ended_at=datetime.now(UTC), days=7,
        ))  # fmt: skip
    await keeper.flush()
    return mine


async def noted(served):
    async with served.world.database.reading() as session:
        log = AuditRepository(session, served.world.organisations["acme"])
        last = next(iter(await log.newest_first(1)))
        return last.type, last.change


@pytest.mark.parametrize("look", ["dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, wanted, look):
    address = f"/requests?request={wanted[0].id}"
    async with browser.page("owner", address, narrow=look == "narrow", dark=look == "dark") as page:
        await browser.shoot(page, f"request-texts-{look}")
        assert await audit(page) == []


async def test_its_own_people_who_may_read_it_and_nobody_else(served, http, wanted):
    seen = {}
    for who in ("owner", "admin", "developer", "viewer", "billing", "operator"):
        http.cookies.set("loratorio-sign-in", await served.cookie(who))
        query = {"request": wanted[0].id}
        if who == "operator":
            query["org"] = served.world.organisations["acme"]
        answer = await http.get("/requests", params=query)
        assert answer.status_code == 200
        assert "<b>What is love?" not in answer.text
        seen[who] = "What is love?" in answer.text
    assert seen == {"owner": True, "admin": True, "developer": True, "viewer": False,
                    "billing": False, "operator": False}  # fmt: skip


async def test_an_owner_turns_it_on_erases_a_customer_and_turns_it_off(served, browser, wanted):
    labs = served.world.projects["acme/labs"]
    async with browser.page("owner", "/requests") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        row = page.locator("[data-texts=labs]")
        await row.locator("[name=days]").fill("30")
        await row.locator("button:has-text('Set')").click()
        await page.wait_for_selector("text=kept for 30 days")
        assert await noted(served) == ("project.updated", {"text_days": 30})
        holders = served.snapshot.current.keys.of_organisation(served.world.organisations["acme"])
        assert {who.text_days for who in holders if who.project == labs} == {30}

        row = page.locator("[data-texts=web]")
        assert "2" in await row.inner_text()
        await row.locator("[name=customer]").fill("ada")
        await row.locator("button:has-text('Erase')").click()
        await page.wait_for_selector("text=1 texts of one customer are erased")
        kind, change = await noted(served)
        assert (kind, change["erased"]) == ("project.texts_erased", 1)
        assert "ada" not in str(change)

        row = page.locator("[data-texts=web]")
        await row.locator("[name=days]").fill("0")
        await row.locator("button:has-text('Set')").click()
        await page.wait_for_selector("text=the 1 there were are erased")
        assert await noted(served) == ("project.updated", {"text_days": 0, "erased": 1})


@pytest.mark.parametrize("days", ["-1", "366", "1.5", "", "9999999"])
async def test_days_that_cannot_be_are_refused(served, browser, http, days):
    cookie = await served.cookie("owner")
    http.cookies.set("loratorio-sign-in", cookie)
    form = {"csrf": token_of(cookie), "action": "keep-texts", "days": days,
            "project": served.world.projects["acme/web"]}  # fmt: skip
    answer = await http.post("/requests", data=form, headers={"sec-fetch-site": "same-origin"})
    assert answer.status_code == 400
    assert "days" in answer.text


async def test_who_may_not_change_projects_changes_nothing(served, http):
    for who, project, status in (("developer", "acme/web", 403), ("owner", "globex/app", 404)):
        cookie = await served.cookie(who)
        http.cookies.set("loratorio-sign-in", cookie)
        for action in ("keep-texts", "erase-texts"):
            form = {"csrf": token_of(cookie), "action": action, "days": "1",
                    "project": served.world.projects[project]}  # fmt: skip
            answer = await http.post("/requests", data=form,
                                     headers={"sec-fetch-site": "same-origin"})  # fmt: skip
            assert answer.status_code == status
