"""Signing in by an OpenID provider: who comes in as what, and which tokens nobody believes."""

import time
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import httpx2
import orjson
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from sqlalchemy import select

from gateway.config import ConfigError
from gateway.identity.login_repository import LoginRepository
from gateway.identity.models import Invite
from gateway.identity.oidc_provider import KEYS_AGAIN_S
from gateway.identity.oidc_settings import read_oidc
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.ids import new_id
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit
from tests.fakes.oidc import CLIENT, SECRET, unsigned, with_shared_secret

pytestmark = ON_THE_SESSIONS_LOOP
ADA = {"sub": "u-1", "email": "ada@acme.example", "email_verified": True, "name": "Ada Byron",
       "groups": ["staff", "acme-developers"]}  # fmt: skip


@pytest.fixture
def provider(served):
    """Nobody has spoiled it yet."""
    found = served.provider
    found.person, found.spoil, found.forge = dict(ADA), None, None
    found.refusal, found.away = "", False
    yield found
    found.spoil = found.forge = None


async def there(http: httpx2.AsyncClient, next: str = "") -> str:
    """The provider's page, as we would send a browser there."""
    answer = await http.get("/sign-in/with", params={"next": next} if next else {})
    assert answer.status_code == 303
    return answer.headers["location"]


async def back(http: httpx2.AsyncClient, page: str) -> httpx2.Response:
    answer = await http.get(page)  # a 302 back to us
    return await http.get(answer.headers["location"])


async def signed_in(http: httpx2.AsyncClient, next: str = "") -> httpx2.Response:
    return await back(http, await there(http, next))


async def whoami(http: httpx2.AsyncClient) -> str:
    answer = await http.get("/account")
    assert answer.status_code == 200, answer.headers
    return answer.text


async def test_somebody_new_comes_in_as_what_their_claim_says(http, served, provider):
    answer = await signed_in(http, "/dashboard/explore?range=30d")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/dashboard/explore?range=30d"
    text = await whoami(http)
    assert "Ada Byron" in text
    assert "developer" in text
    provider.person["groups"] = ["acme-billing"]
    await signed_in(http)
    assert "billing" in await whoami(http)


async def test_whoever_was_invited_comes_in_and_stays(http, served, provider):
    world = served.world
    now = datetime.now(UTC)
    async with world.database.publish() as session:
        owner = (await LoginRepository(session).named(world.email("viewer")))[0][1]
        project = (await OrganisationRepository(session, owner.organisation_id).projects())[0].id
        for email, ends in (("bea@acme.example", now + timedelta(days=1)),
                            ("late@acme.example", now)):  # fmt: skip
            session.add(
                Invite(
                    id=new_id("invite"), organisation_id=owner.organisation_id, email=email,
                    role="billing", projects={project: "developer", "prj_gone": "viewer"},
                    created_at=now, expires_at=ends, accepted_at=None, user_id=None,
                )
            )  # fmt: skip
    provider.person |= {"sub": "u-late", "email": "late@acme.example", "groups": []}
    assert "no role here" in (await signed_in(http)).text
    provider.person |= {"sub": "u-bea", "email": "bea@acme.example", "email_verified": False}
    assert (await signed_in(http)).status_code != 303
    provider.person |= {"email_verified": True, "name": "Bea"}
    for _ in range(2):  # accepted the first time, known the second
        assert (await signed_in(http)).status_code == 303
        text = await whoami(http)
        assert "Bea" in text
        assert "billing" in text
    async with world.database.reading() as session:
        rows = OrganisationRepository(session, owner.organisation_id)
        (bea,) = [row for row in await rows.people() if row.email == "bea@acme.example"]
        mine = [(m.project_id, m.role) for m in await rows.members() if m.user_id == bea.id]
        invite = (await session.scalars(select(Invite).where(Invite.user_id == bea.id))).one()
    assert mine == [(project, "developer")]
    assert invite.accepted_at is not None


async def test_who_has_a_password_keeps_it_and_their_place(http, served, provider):
    provider.person |= {"sub": "u-owner", "email": served.world.email("viewer"),
                        "groups": ["acme-viewers"]}  # fmt: skip
    assert (await signed_in(http)).status_code == 303
    assert "Viewer Person" in await whoami(http)
    assert await served.logins.viewer(await served.cookie("viewer")) is not None


async def test_an_operator_comes_in_as_one(http, provider):
    provider.person |= {"sub": "u-op", "email": "op@gateway.example", "groups": ["operators"]}
    await signed_in(http)
    assert (await http.get("/health")).status_code == 200


async def test_an_address_that_was_given_anew_opens_nothing(http, provider):
    assert (await signed_in(http)).status_code == 303
    http.cookies.clear()
    provider.person["sub"] = "u-2"
    answer = await signed_in(http)
    assert answer.status_code == 401
    assert "somebody else" in answer.text
    assert (await http.get("/account")).status_code == 303


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"groups": ["nobody"]}, "no role"),
        ({"groups": None}, "no role"),
        ({"email_verified": False}, "vouch"),
        ({"email_verified": "true"}, "vouch"),
        ({"email": None}, "vouch"),
    ],
)
async def test_who_has_no_role_or_no_address_stays_out(http, provider, changed, told):
    provider.person |= {"sub": "u-out"} | changed
    answer = await signed_in(http)
    assert answer.status_code == 401
    assert told in answer.text
    assert (await http.get("/account")).status_code == 303


NOW = int(time.time())
SPOILED = {
    "another issuer": lambda header, claims: claims.update(iss="https://evil.example"),
    "another audience": lambda header, claims: claims.update(aud="another"),
    "several, and not ours": lambda header, claims: claims.update(aud=[CLIENT, "b"], azp="b"),
    "several without azp": lambda header, claims: claims.update(aud=[CLIENT, "b"]),
    "expired": lambda header, claims: claims.update(exp=NOW - 3600),
    "no end": lambda header, claims: claims.pop("exp"),
    "made tomorrow": lambda header, claims: claims.update(iat=NOW + 86400),
    "made yesterday": lambda header, claims: claims.update(iat=NOW - 86400),
    "not yet": lambda header, claims: claims.update(nbf=NOW + 3600),
    "another nonce": lambda header, claims: claims.update(nonce="x"),
    "no nonce": lambda header, claims: claims.pop("nonce"),
    "nonce is no text": lambda header, claims: claims.update(nonce=7),
    "nobody": lambda header, claims: claims.pop("sub"),
    "an empty name": lambda header, claims: claims.update(sub=""),
    "an unknown key": lambda header, claims: header.update(kid="no such key"),
}
FORGED = {
    "unsigned": unsigned,
    "a shared secret": with_shared_secret,
    "another's key": lambda claims: jwt.encode({"alg": "RS256"}, claims, RSAKey.generate_key(2048)),
    "no token": lambda claims: "three.little.words",
    "nothing": lambda claims: "",
    "very long": lambda claims: "a" * 100_000,
}


@pytest.mark.parametrize("kind", [*SPOILED, *FORGED])
async def test_a_bad_token_opens_nothing(http, provider, kind):
    provider.spoil, provider.forge = SPOILED.get(kind), FORGED.get(kind)
    answer = await signed_in(http)
    assert answer.status_code == 401, kind
    assert "not believed" in answer.text
    assert "loratorio-sign-in" not in http.cookies


async def test_new_keys_are_fetched_and_not_for_every_token(http, served, provider):
    assert (await signed_in(http)).status_code == 303
    provider.rotate()
    served.provider_clock.advance(KEYS_AGAIN_S + 1)
    assert (await signed_in(http)).status_code == 303
    provider.asked.clear()
    provider.spoil = SPOILED["an unknown key"]
    for _ in range(3):
        await signed_in(http)
    assert provider.asked.count("/keys") == 0


async def test_only_the_browser_that_left_comes_back_and_once(http, served, provider):
    page = await there(http)
    landed = (await http.get(page)).headers["location"]
    async with httpx2.AsyncClient(base_url=f"{served.url}/dashboard") as stranger:
        assert (await stranger.get(landed)).status_code == 401
        other = await there(stranger)
        assert parse_qs(urlsplit(other).query)["state"] != parse_qs(urlsplit(page).query)["state"]
        assert (await stranger.get(landed)).status_code == 401
    assert (await http.get(landed)).status_code == 303
    http.cookies.clear()
    assert (await http.get(landed)).status_code == 401


@pytest.mark.parametrize("query", ["code=x", "state=x&code=x", "state=&code=", "error=denied"])
async def test_a_way_back_without_its_state_is_refused(http, provider, query):
    await there(http)
    assert (await http.get(f"/sign-in/return?{query}")).status_code == 401


async def test_a_code_of_another_sign_in_does_not_fit(http, served, provider):
    async with httpx2.AsyncClient(base_url=f"{served.url}/dashboard") as thief:
        stolen = urlsplit((await thief.get(await there(thief))).headers["location"]).query
    state = parse_qs(urlsplit(await there(http)).query)["state"][0]
    code = parse_qs(stolen)["code"][0]
    answer = await http.get("/sign-in/return", params={"code": code, "state": state})
    assert answer.status_code == 401
    assert "did not take the code" in answer.text


async def test_another_service_in_the_middle_is_noticed(http, provider):
    landed = (await http.get(await there(http))).headers["location"]
    query = dict(httpx2.QueryParams(urlsplit(landed).query)) | {"iss": "https://evil.example"}
    answer = await http.get("/sign-in/return", params=query)
    assert answer.status_code == 401
    assert "another service" in answer.text


async def test_what_the_provider_refuses_is_said_in_a_word(http, provider):
    provider.refusal = "access_denied"
    answer = await signed_in(http)
    assert answer.status_code == 401
    assert "access_denied" in answer.text
    assert "<b>" not in answer.text


async def test_nobody_is_sent_to_another_site_afterwards(http, provider):
    for target in ("https://evil.example", "//evil.example", "/dashboard/\\evil", "/other"):
        answer = await signed_in(http, target)
        assert answer.headers["location"] == "/dashboard/"


async def test_while_the_provider_is_away_passwords_still_work(http, served, provider):
    provider.away = True
    served.provider_clock.advance(4000)
    answer = await http.get("/sign-in/with")
    assert answer.status_code == 503
    assert "password" in answer.text
    provider.away = False


@pytest.mark.parametrize("look", ["dark", "narrow"])
async def test_the_page_offers_it_and_a_browser_takes_it(browser, served, provider, look):
    narrow, dark = look == "narrow", look == "dark"
    async with browser.page(None, "/explore", narrow=narrow, dark=dark) as page:
        await browser.shoot(page, f"sign-in-sso-{look}")
        assert await audit(page) == []
        await page.click("text=Sign in with Example")
        await page.wait_for_url("**/dashboard/explore")
        assert "Explore" in await page.inner_text("h1")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"issuer": "http://id.example"}, "issuer"),
        ({"issuer": "https://id.example?x=1"}, "issuer"),
        ({"url": "llm.example"}, "url"),
        ({"client_id": ""}, "client_id"),
        ({"scopes": ["email"]}, "scopes"),
        ({"roles": []}, "roles"),
        ({"roles": [{"value": "a"}]}, "roles[0]"),
        ({"roles": [{"value": "a", "operator": True, "organisation": "b"}]}, "roles[0]"),
        ({"roles": [{"value": "a", "organisation": "b", "role": "king"}]}, "role"),
        ({"secret": "x"}, "secret"),
    ],
)
async def test_settings_that_cannot_be_are_refused_by_name(tmp_path, change, named):
    file = tmp_path / "oidc.json"
    good = {"issuer": "https://id.example", "client_id": "c", "url": "https://llm.example",
            "client_secret": SECRET, "roles": [{"value": "a", "operator": True}]}  # fmt: skip
    file.write_bytes(orjson.dumps(good | change))
    with pytest.raises(ConfigError, match=named.replace("[", r"\[")) as error:
        read_oidc(file)
    assert SECRET not in str(error.value)
