"""Adapters: versions with what they cost, names that switch, roll back and split, at once."""

from datetime import UTC, datetime

import pytest
import pytest_asyncio

from engine.protocol import AdapterRef
from gateway.audit.repository import AuditRepository
from gateway.catalog.service import CatalogService, Facts
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit

pytestmark = ON_THE_SESSIONS_LOOP
REPORT = '{"modules": [{"name": "q_proj", "rank": 8}], "canary": {"kl": 0.0004}}'


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def labs(served):
    """The project's id; it has three versions of one adapter, and a name."""
    project = served.world.projects["acme/labs"]
    async with served.world.database.publish() as session:
        catalog = CatalogService(session, project, datetime.now(UTC))
        for number in (1, 2, 3):
            ref = AdapterRef(f"sha256:{number:064x}", 8 * number)
            await catalog.publish("tone", ref, Facts(nbytes=number << 20, report=REPORT))
            await session.flush()
        await catalog.set_alias("prod", "tone@1")
    return project


def target(served, project, name, subject=""):
    return served.snapshot.current.catalogue.resolve(project, name, lambda: subject).adapter.digest


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, labs, look):
    narrow, dark = look == "narrow", look == "dark"
    address = f"/adapters?project={labs}"
    async with browser.page("owner", address, narrow=narrow, dark=dark) as page:
        await page.click("summary:has-text('Lead a name')")
        await browser.shoot(page, f"adapters-{look}")
        assert await audit(page) == []


async def test_a_version_is_shown_with_its_size_and_what_was_accepted(browser, labs):
    async with browser.page("viewer", f"/adapters?project={labs}") as page:
        assert await page.inner_text("[data-name=ready]") == "3"
        assert await page.inner_text("[data-name=stored]") == "6.0 MiB"
        assert await page.locator("main form").count() == 0
        line = await page.inner_text('[data-version="tone@2"]')
        assert "2.0 MiB" in line
        assert "16" in line
        await page.click("text=tone@2")
        told = await page.inner_text("pre.told")
        assert '"q_proj"' in told
        assert await audit(page) == []


async def test_a_name_switches_splits_rolls_back_and_ends(served, browser, labs):
    def digest(number):
        return f"sha256:{number:064x}"

    async with browser.page("developer", f"/adapters?project={labs}", refused=400) as page:
        page.on("dialog", lambda dialog: dialog.accept())

        async def lead(version, canary="", percent="0"):
            await page.click("summary:has-text('Lead a name')")
            await page.fill("#a-name", "prod")
            await page.select_option("#a-version", version)
            await page.select_option("#a-canary", canary)
            await page.fill("#a-percent", percent)
            await page.click("form:has(#a-name) button")

        await lead("tone@2")
        assert "leads to tone@2" in await page.inner_text("[role=status]")
        assert target(served, labs, "prod") == digest(2)
        await lead("tone@2", "tone@3")
        assert "canary" in await page.inner_text("[role=alert]")
        await page.goto(page.url)
        await lead("tone@2", "tone@3", "50")
        found = {target(served, labs, "prod", str(who)) for who in range(60)}
        assert found == {digest(2), digest(3)}
        await page.click("[data-alias=prod] button:has-text('Roll back')")
        assert {target(served, labs, "prod", str(who)) for who in range(60)} == {digest(2)}
        await page.click("[data-alias=prod] button:has-text('Roll back')")
        assert target(served, labs, "prod") == digest(1)
        await page.click('[data-version="tone@3"] button:has-text("Keep close")')
        assert "kept close" in await page.inner_text('[data-version="tone@3"]')
        await page.click('[data-version="tone@3"] button:has-text("Retire")')
        assert "retired" in await page.inner_text('[data-version="tone@3"]')
    acme = served.world.organisations["acme"]
    async with served.world.database.reading() as session:
        kinds = [each.type for each in await AuditRepository(session, acme).newest_first(6)]
    assert kinds == ["adapter.retired", "adapter.updated", *["adapter_alias.updated"] * 4]


async def test_anothers_adapters_are_not_there(served, http, browser):
    async with browser.page("developer", "/budgets") as page:
        csrf = await page.get_attribute("[name=csrf]", "value")
    http.cookies.set("loratorio-sign-in", await served.cookie("developer"))
    theirs = served.world.projects["globex/app"]
    for project in (theirs, "proj_0"):
        sent = {"csrf": csrf, "action": "retire", "project": project, "version": "tone"}
        answer = await http.post("/adapters", data=sent, headers={"sec-fetch-site": "same-origin"})
        assert answer.status_code == 404
