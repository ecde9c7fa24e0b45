"""Explore: what is shown, however it is cut, adds up to the ledger."""

import csv
import io

import pytest

from gateway.dashboard.sheet import csv_answer
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import OPERATOR

pytestmark = ON_THE_SESSIONS_LOOP


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
async def test_it_is_accessible_however_it_is_looked_at(browser, look):
    async with browser.page(
        "viewer", "/explore?by=model&range=30d", narrow=look == "narrow", dark=look == "dark"
    ) as page:
        await page.wait_for_selector(".u-wrap canvas")
        await browser.shoot(page, f"explore-{look}")
        assert await audit(page) == []


async def test_choosing_is_kept_in_the_address_and_the_other_groups_are_one(served, browser):
    async with browser.page("owner", "/explore?range=30d") as page:
        await page.select_option("#by", "model")
        await page.select_option("#top", "3")
        await page.select_option("#shape", "sum")
        await page.click(".asked button")
        await page.wait_for_selector(".u-wrap canvas")
        assert "by=model" in page.url
        assert "top=3" in page.url
        assert await page.input_value("#shape") == "sum"
        names = await page.locator(".keys li").all_inner_texts()
        assert any(name.startswith("Other (6)") for name in names)
        await browser.shoot(page, "explore-sum")


@pytest.mark.parametrize("by", ["none", "model", "project", "key", "adapter", "endpoint", "tier"])
async def test_however_it_is_grouped_the_total_is_the_ledgers(served, http, by):
    http.cookies.set("loratorio-sign-in", await served.cookie("billing"))
    text = (await http.get(f"/explore?range=90d&by={by}&zone=Asia/Kathmandu&format=csv")).text
    rows = list(csv.DictReader(io.StringIO(text)))
    events = served.world.events_of("acme")
    assert sum(int(row["spend_nano_usd"]) for row in rows) == sum(e.cost_nano for e in events)
    assert sum(int(row["requests"]) for row in rows) == len(events)
    assert all(row["start"].endswith("T00:00:00+05:45") for row in rows)


async def test_an_operator_may_tell_organisations_apart_and_a_tenant_may_not(served, http):
    http.cookies.set("loratorio-sign-in", await served.cookie(OPERATOR))
    text = (await http.get("/explore?by=organisation&range=90d&format=csv")).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["organisation"] for row in rows} == {"acme", "globex", "initech"}
    assert sum(int(row["requests"]) for row in rows) == len(served.world.events)
    http.cookies.clear()
    http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
    assert (await http.get("/explore?by=organisation")).status_code == 400


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("metric=joy", "metric &#39;joy&#39;: one of spend"),
        ("range=9y", "range &#39;9y&#39;"),
        ("from=2026-13-01&to=2026-13-02", "is not a day"),
        ("from=2026-11-30&to=2026-11-01", "must not be after"),
        ("from=2020-01-01&to=2026-01-01", "at most 400 days"),
        ("from=2026-01-01&to=2026-06-01&interval=hour", "more than 1000 buckets"),
        ("zone=Mars/Olympus", "is no time zone"),
    ],
)
async def test_what_cannot_be_shown_is_a_400_that_names_the_field(served, http, query, said):
    http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
    answer = await http.get(f"/explore?{query}")
    assert answer.status_code == 400
    assert said in answer.text


async def test_names_are_no_formulas_in_a_spreadsheet(served, http):
    body = csv_answer("x", [["=cmd()", "-1", "plain"], ["@a", 5, "a,b"], ["＝1", "\n=1"]]).body
    assert list(csv.reader(io.StringIO(bytes(body).decode(), newline=""))) == [
        ["'=cmd()", "'-1", "plain"], ["'@a", "5", "a,b"], ["'＝1", "'\n=1"],
    ]  # fmt: skip


async def test_an_operators_page_names_whom_it_shows_and_reads_no_other_names(served, http):
    http.cookies.set("loratorio-sign-in", await served.cookie(OPERATOR))
    page = (await http.get("/explore?by=organisation&range=90d")).text
    assert all(name in page for name in ("acme", "globex", "initech"))
    project = served.world.events_of("acme")[0].project_id
    page = (await http.get(f"/explore?by=project&range=90d&project={project}")).text
    assert "acme/" in page
    assert "globex/" not in page
    page = (await http.get(f"/explore?by=model&range=90d&project={project}")).text
    assert "acme/" in page  # the chosen one, by name
