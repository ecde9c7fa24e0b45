"""Signing in and out: who gets in, how guessing is slowed, what other sites cannot do."""

import asyncio

import pytest

from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.dashboard.world import OPERATOR, PASSWORD

pytestmark = ON_THE_SESSIONS_LOOP
OURS = {"sec-fetch-site": "same-origin"}


def form(email: str, password: str = PASSWORD, **more: str) -> dict[str, str]:
    return {"email": email, "password": password, **more}


async def test_a_person_signs_in_goes_where_they_wanted_and_signs_out(served, browser):
    async with browser.page(None, "?range=30d") as page:
        assert "/sign-in?next=" in page.url
        assert await audit(page) == []
        await browser.shoot(page, "sign-in")
        await page.fill("#email", "Owner@acme.example ")
        await page.fill("#password", PASSWORD)
        await page.press("#password", "Enter")
        await page.wait_for_url(lambda url: url.endswith("/dashboard/?range=30d"))
        cookie = (await page.context.cookies())[0]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        await page.click(".person summary")
        await page.click("text=Sign out")
        await page.wait_for_url("**/sign-in")
        await page.context.add_cookies([cookie])
        await page.goto(f"{served.url}/dashboard")
        assert "/sign-in" in page.url, "what was signed out stays so, also with the old cookie"


async def test_a_wrong_password_and_nobody_are_the_same_answer(served, http):
    wrong = await http.post("/sign-in", data=form("owner@acme.example", "x" * 20), headers=OURS)
    nobody = await http.post("/sign-in", data=form("nobody@acme.example"), headers=OURS)
    served.attempts.succeeded("address 127.0.0.1")
    assert wrong.status_code == nobody.status_code == 401
    same = [each.text.split("</form>")[0].split('role="alert"')[1].split("</p>")[0]
            for each in (wrong, nobody)]  # fmt: skip
    assert same[0] == same[1]
    assert "set-cookie" not in wrong.headers


async def test_guessing_is_slowed_by_name_and_by_address(served, http):
    for _ in range(5):
        refused = await http.post("/sign-in", data=form("guess@acme.example", "y"), headers=OURS)
        assert refused.status_code == 401
    limited = await http.post("/sign-in", data=form("guess@acme.example", "y"), headers=OURS)
    assert limited.status_code == 429
    assert 10 <= int(limited.headers["retry-after"]) <= 15
    other = await http.post("/sign-in", data=form("owner@acme.example"), headers=OURS)
    assert other.status_code == 429, "the same address, another name"
    served.attempts.succeeded("address 127.0.0.1")
    let_in = await http.post("/sign-in", data=form("owner@acme.example"), headers=OURS)
    assert let_in.status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/sign-in", "/preferences", "/sign-out", "/account/password"])
async def test_a_form_of_another_site_is_refused(served, http, path, headers):
    http.cookies.set("loratorio-sign-in", await served.cookie("viewer"))
    sent = form("owner@acme.example", zone="Asia/Tokyo")
    answer = await http.post(path, data=sent, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_a_form_without_its_token_is_refused_even_from_our_own_page(served, http):
    http.cookies.set("loratorio-sign-in", await served.cookie("viewer"))
    for csrf in ("", "0" * 40):
        answer = await http.post("/sign-out", data={"csrf": csrf}, headers=OURS)
        assert answer.status_code == 403
    assert (await http.get("/account")).status_code == 200


async def test_a_form_that_does_not_arrive_is_not_waited_for(served, monkeypatch):
    """Nobody has to be known to send one."""
    monkeypatch.setattr("gateway.http.BODY_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    writer.write(
        b"POST /dashboard/sign-in HTTP/1.1\r\nhost: a\r\nsec-fetch-site: same-origin\r\n"
        b"content-length: 9\r\n\r\n"
    )
    async with asyncio.timeout(20):
        assert (await reader.readline()).split()[1] == b"400"
    writer.close()


@pytest.mark.parametrize(
    "target",
    ["https://evil.example", "//evil.example", "/dashboard\\evil", "/dashboardevil", "/v1"],
)
async def test_signing_in_leads_nowhere_but_into_the_dashboard(http, target):
    sent = form("viewer@acme.example", next=target)
    answer = await http.post("/sign-in", data=sent, headers=OURS)
    assert answer.headers["location"] == "/dashboard/"


async def test_every_page_says_what_a_browser_may_run_and_is_kept_nowhere(served, http):
    for path in ("/sign-in", "", "/account", "/missing"):
        answer = await http.get(path)
        http.cookies.set("loratorio-sign-in", await served.cookie("owner"))
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "form-action 'self'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert "<script>" not in answer.text
        assert " style=" not in answer.text
        assert "onclick" not in answer.text


async def test_a_person_changes_their_password_and_other_browsers_are_signed_out(served, browser):
    old = await served.logins.sign_in(
        "developer@acme.example", PASSWORD, address="127.0.0.1", browser="old"
    )
    async with browser.page("developer", "/account") as page:
        assert await audit(page) == []
        await browser.shoot(page, "account")
        for name, text in (("old", PASSWORD), ("new", PASSWORD + "2"), ("again", PASSWORD + "2")):
            await page.fill(f"#{name}", text)
        await page.click("text=Change password")
        assert "is changed" in await page.inner_text("[role=status]")
        assert await served.logins.viewer(old) is None
        for name, text in (("old", PASSWORD), ("new", PASSWORD + "3"), ("again", PASSWORD + "3")):
            await page.fill(f"#{name}", text)
        await page.click("text=Change password")
        assert "is not this one" in await page.inner_text("[role=alert]")
        for name, text in (("old", PASSWORD + "2"), ("new", PASSWORD), ("again", PASSWORD)):
            await page.fill(f"#{name}", text)
        await page.click("text=Change password")
        assert "is changed" in await page.inner_text("[role=status]")


async def test_a_role_taken_away_is_gone_with_the_next_page(served, browser):
    async with browser.page(OPERATOR, "/organisations") as page:
        assert await audit(page) == []
        await browser.shoot(page, "organisations")
    async with browser.page("owner", "/organisations", status=403) as page:
        assert "not for your role" in await page.inner_text("main")
