"""Projects and people: made, changed and removed by who may, and never an owner by another."""

import pytest

from gateway.audit.repository import AuditRepository
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import PEOPLE

pytestmark = ON_THE_SESSIONS_LOOP


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, look):
    narrow, dark = look == "narrow", look == "dark"
    async with browser.page("owner", "/people", narrow=narrow, dark=dark) as page:
        await page.click("summary:has-text('Add a person')")
        await browser.shoot(page, f"people-{look}")
        assert await audit(page) == []


async def test_a_person_is_added_changed_and_removed(served, browser):
    acme = served.world.organisations["acme"]
    async with browser.page("admin", "/people", refused=400) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        await page.click("summary:has-text('Add a person')")
        await page.fill("#u-name", "Ada Newcomer")
        await page.fill("#u-email", "no address")
        await page.click("form:has(#u-email) button")
        assert "not an e-mail address" in await page.inner_text("[role=alert]")
        await page.fill("#u-email", "Newcomer@acme.example")
        await page.click("form:has(#u-email) button")
        row = page.locator('[data-person="newcomer@acme.example"]')
        assert "no sign-in" in await row.inner_text()
        await row.locator("select").select_option("developer")
        await row.locator("button:has-text('Give')").click()
        assert "was viewer and is developer" in await page.inner_text("[role=status]")
        await row.locator(".bad").click()
        assert await page.locator('[data-person="newcomer@acme.example"]').count() == 0
    async with served.world.database.reading() as session:
        found = await AuditRepository(session, acme).newest_first(3)
    assert [each.type for each in found] == ["user.deleted", "user.updated", "user.added"]


async def test_owners_alone_change_owners(browser):
    async with browser.page("admin", "/people", refused=403) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        row = page.locator(f'[data-person="{PEOPLE["owner"]}"]')
        await row.locator(".bad").click()
        assert "Only owners" in await page.inner_text("main")


async def test_a_project_is_made_and_archived_with_its_keys(served, browser):
    async with browser.page("owner", "/people") as page:
        page.on("dialog", lambda dialog: dialog.accept())
        await page.click("summary:has-text('Make a project')")
        await page.fill("#p-name", "shortlived")
        await page.click("form:has(#p-name) button")
        assert "is there" in await page.inner_text("[role=status]")
        await page.click('[data-project="shortlived"] button')
        assert "is archived" in await page.inner_text("[role=status]")
        assert await page.locator('[data-project="shortlived"]').count() == 0


async def test_who_has_not_the_right_sees_no_form(browser):
    async with browser.page("viewer", "/people") as page:
        assert await page.locator("main form").count() == 0
