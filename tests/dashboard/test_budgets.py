"""Budgets and alerts: what was spent is the ledger's, and what is changed is audited and holds."""

from datetime import UTC, datetime

import pytest

from gateway.audit.repository import AuditRepository
from gateway.dashboard.budget_actions import nano_in
from gateway.errors import InvalidRequest
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import exact_usd

pytestmark = ON_THE_SESSIONS_LOOP


async def row(page, budget: str) -> str:
    return " ".join((await page.inner_text(f'[data-budget="{budget}"]')).split())


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, look):
    narrow, dark = look == "narrow", look == "dark"
    async with browser.page("owner", "/budgets", narrow=narrow, dark=dark) as page:
        await page.wait_for_selector(".u-wrap canvas")
        await browser.shoot(page, f"budgets-{look}")
        assert await audit(page) == []


async def test_what_was_spent_this_month_is_the_ledgers(served, browser):
    first = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    month = [e for e in served.world.events_of("acme") if e.started_at >= first]
    nano = sum(e.cost_nano or 0 for e in month)
    async with browser.page("billing", "/budgets") as page:
        exact = await page.get_attribute("[data-name=spent]", "data-exact")
        assert exact == exact_usd(nano)


async def test_a_budget_and_an_alert_are_set_hold_at_once_and_are_removed(served, browser):
    acme = served.world.organisations["acme"]
    async with browser.page("billing", "/budgets", refused=400) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        await page.click("summary:has-text('Set a budget')")
        await page.select_option("#b-period", "day")
        await page.fill("#b-amount", "3.5")
        await page.click("form:has(#b-amount) button")
        assert "The budget is set" in await page.inner_text("[role=status]")
        assert "$3.50" in await row(page, "organisation day")
        assert any(r.limit == 3_500_000_000 for r in served.snapshot.limits_of(acme))
        await page.click('[data-budget="organisation day"] button')
        assert "is removed" in await page.inner_text("[role=status]")
        await page.click("summary:has-text('Add an alert')")
        await page.fill("#a-amount", "7")
        await page.fill("#a-recipients", "not an address")
        await page.click("form:has(#a-amount) button")
        assert "is not an e-mail address" in await page.inner_text("[role=alert]")
        await page.click("summary:has-text('Add an alert')")
        await page.fill("#a-amount", "7")
        await page.fill("#a-recipients", "ops@acme.example, boss@acme.example")
        await page.click("form:has(#a-amount) button")
        assert "ops@acme.example, boss@acme.example" in await page.inner_text("main")
    async with served.world.database.reading() as session:
        found = await AuditRepository(session, acme).newest_first(3)
    assert [each.type for each in found] == [
        "organization.spend_alert.created",
        "organization.spend_limit.deleted",
        "organization.spend_limit.updated",
    ]
    assert {each.actor_type for each in found} == {"login"}


async def test_who_has_not_the_right_sees_no_form_and_is_refused_without_one(served, http, browser):
    async with browser.page("developer", "/budgets") as page:
        assert await page.locator("main form").count() == 0
        csrf = await page.get_attribute("[name=csrf]", "value")
    http.cookies.set("loratorio-sign-in", await served.cookie("developer"))
    sent = {"csrf": csrf, "action": "set-budget", "amount": "1", "period": "month",
            "on_exhaust": "cut"}  # fmt: skip
    ours = {"sec-fetch-site": "same-origin"}
    assert (await http.post("/budgets", data=sent, headers=ours)).status_code == 403


async def test_another_organisations_project_is_one_that_does_not_exist(served, http, browser):
    async with browser.page("owner", "/budgets") as page:
        csrf = await page.get_attribute("[name=csrf]", "value")
    http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
    ours = {"sec-fetch-site": "same-origin"}
    answers = []
    for project in (served.world.projects["globex/app"], "prj_missing"):
        sent = {"csrf": csrf, "action": "set-budget", "amount": "1", "period": "month",
                "on_exhaust": "cut", "project": project}  # fmt: skip
        answers.append(await http.post("/budgets", data=sent, headers=ours))
    assert [each.status_code for each in answers] == [404, 404]
    assert "no project of this id" in answers[0].text
    assert "no project of this id" in answers[1].text


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("25", 25 * 10**9),
        ("$1,250.50", 1_250_500_000_000),
        ("0.000000001", 1),
        (" 3 ", 3 * 10**9),
        (".5", 5 * 10**8),
        ("1,000,000", 10**15),
    ],
)
async def test_amounts_are_read_to_the_nano_dollar(text, nano):
    assert nano_in({"amount": text}, "amount", least=0) == nano


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "NaN",
        "inf",
        "-1",
        "0.0000000001",
        "1e30",
        "9e999999",
        "9000001",
        "١٢",
        "1" * 40,
        "0,50",
        "25,5",
        "1.250,50",
        "0,500",
        "1,5000",
        "1_000",
        ".",
        "0.5" + "0" * 21 + "1",
    ],
)
async def test_what_is_no_amount_is_refused_by_name(text):
    with pytest.raises(InvalidRequest, match="amount"):
        nano_in({"amount": text}, "amount", least=0)
