"""Keys: made, shown once, rotated and revoked by who may; changes hold at once and are audited."""

from datetime import UTC, datetime

import pytest

from gateway.audit.repository import AuditRepository
from gateway.errors import GatewayError
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import exact_usd

pytestmark = ON_THE_SESSIONS_LOOP
SENT = {"sec-fetch-site": "same-origin"}


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, look):
    narrow, dark = look == "narrow", look == "dark"
    async with browser.page("owner", "/keys", narrow=narrow, dark=dark) as page:
        await page.click("summary:has-text('Make a key')")
        await browser.shoot(page, f"keys-{look}")
        assert await audit(page) == []


async def test_what_a_key_used_this_month_is_the_ledgers(served, browser):
    web, now = served.world.projects["acme/web"], served.world.keys["acme/web"]
    async with browser.page("developer", f"/keys?project={web}") as page:
        line = " ".join((await page.inner_text(f'[data-key="{now}"]')).split())
        assert "web-key" in line
        spent = await page.get_attribute(f'[data-key="{now}"] td[title]', "title")
    first = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    mine = [e for e in served.world.events if e.key_id == now and e.started_at >= first]
    assert spent == exact_usd(sum(e.cost_nano or 0 for e in mine))


async def test_a_key_is_made_shown_once_rotated_and_revoked(served, browser):
    acme, labs = served.world.organisations["acme"], served.world.projects["acme/labs"]
    async with browser.page("developer", f"/keys?project={labs}", refused=400) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        await page.click("summary:has-text('Make a key')")
        await page.fill("#k-name", "nightly")
        await page.fill("#k-networks", "10.0.0.0/33")
        await page.click("form:has(#k-name) button")
        assert "10.0.0.0/33" in await page.inner_text("[role=alert]")
        await page.fill("#k-networks", "10.0.0.0/8")
        await page.select_option("#k-expires", "7")
        await page.click("form:has(#k-name) button")
        made = await page.inner_text("[data-made]")
        who = served.snapshot.authenticate(made)
        assert (who.organisation, who.project) == (acme, labs)
        await page.goto(page.url)
        assert made not in await page.content()
        row = page.locator("tr", has_text="nightly")
        assert "10.0.0.0/8" in await row.inner_text()
        assert "in 6 d" in await row.inner_text()
        await row.locator("select").select_option("0")
        await row.locator("button:has-text('Rotate')").click()
        other = await page.inner_text("[data-made]")
        assert served.snapshot.authenticate(other).project == labs
        with pytest.raises(GatewayError):
            served.snapshot.authenticate(made)
        await page.locator("tr", has_text="nightly").first.locator(".bad").click()
        assert "is revoked" in await page.inner_text("[role=status]")
        with pytest.raises(GatewayError):
            served.snapshot.authenticate(other)
        assert "revoked" in await page.inner_text("[aria-label='Keys that ended']")
    async with served.world.database.reading() as session:
        found = await AuditRepository(session, acme).newest_first(4)
    assert [each.type for each in found] == [
        "api_key.deleted", "api_key.updated", "api_key.created", "api_key.created",
    ]  # fmt: skip
    assert not any(made in str(each.change) or other in str(each.change) for each in found)


async def test_who_has_not_the_right_sees_neither_page_nor_anothers_keys(served, http, browser):
    async with browser.page("viewer", "/keys", status=403):
        pass
    async with browser.page("developer", "/budgets") as page:
        csrf = await page.get_attribute("[name=csrf]", "value")
    http.cookies.set("loratorio-sign-in", await served.cookie("developer"))
    theirs = {
        "project": served.world.projects["globex/app"],
        "key": served.world.keys["globex/app"],
    }
    missing = {"project": "proj_0", "key": "key_0"}
    for named in (theirs, missing):
        sent = {"csrf": csrf, "action": "revoke-key", **named}
        answer = await http.post("/keys", data=sent, headers=SENT)
        assert answer.status_code == 404
    assert served.snapshot.holder(served.world.keys["globex/app"])
