"""Credit and the rotation of keys over HTTP: what the commands do, by administrators."""

import time

import openai
import pytest

from gateway.catalog.models import Adapter
from gateway.ids import new_id
from gateway.limits.models import Level
from gateway.limits.rules import Rates, Subject
from tests.gateway.test_ledger import NOON

OBJECT = {"cast_to": object, "options": {"security": {"admin_api_key_auth": True}}}


async def post(client, path, **body):
    return await client.post(f"/organization{path}", body=body, **OBJECT)


async def credits(client):
    return (await client.get("/organization/credits", **OBJECT))["data"]


async def own_id(client):
    [key] = [one async for one in client.admin.organization.admin_api_keys.list()]
    return key.owner.id


async def test_the_operator_grants_credit_to_any_organisation(clients):
    (acme, globex, _), live = clients
    theirs = await own_id(globex)
    made = await post(acme, "/credits", organization_id=theirs, amount=250, note="receipt 7",
                      expires_in_seconds=3600)  # fmt: skip
    assert (made["amount_nano_usd"], made["note"]) == (2_500_000_000, "receipt 7")
    assert abs(made["expires_at"] - made["granted_at"] - 3600) <= 1
    assert await credits(globex) == [made]
    assert await credits(acme) == []
    own = await post(acme, "/credits", amount_nano_usd=5)
    assert await credits(acme) == [own]
    await live.refresh()
    assert live.rules().credit_of(theirs).nano == 2_500_000_000
    [event] = [e async for e in globex.admin.organization.audit_logs.list()]
    assert event.type == "credit.granted"


async def test_nobody_fills_the_own_purse(clients):
    (acme, globex, _), _ = clients
    for more in ({}, {"organization_id": await own_id(globex)}, {"organization_id": "org_none"}):
        with pytest.raises(openai.PermissionDeniedError, match="operator"):
            await post(globex, "/credits", amount=1, **more)
    with pytest.raises(openai.NotFoundError) as missing:
        await post(acme, "/credits", amount=1, organization_id="org_none")
    assert missing.value.param == "organization_id"
    assert await credits(globex) == []


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({}, "amount"),
        ({"amount": 0}, "amount"),
        ({"amount": -5}, "amount"),
        ({"amount": "5"}, "amount"),
        ({"amount": 1.5}, "amount"),
        ({"amount": 10**18}, "amount"),
        ({"amount_nano_usd": 0}, "amount_nano_usd"),
        ({"amount": 1, "currency": "EUR"}, "currency"),
        ({"amount": 1, "expires_in_seconds": 0}, "expires_in_seconds"),
        ({"amount": 1, "note": "x" * 257}, "note"),
        ({"amount": 1, "note": 3}, "note"),
    ],
)
async def test_what_is_wrong_with_a_credit_is_named(clients, wrong, param):
    (acme, _, _), _ = clients
    with pytest.raises(openai.BadRequestError) as told:
        await post(acme, "/credits", **wrong)
    assert told.value.param == param
    assert await credits(acme) == []


async def test_adapters_have_rates_of_their_own(clients, database):
    (acme, globex, _), live = clients
    rates = acme.admin.organization.projects.rate_limits
    [web] = [one.id async for one in acme.admin.organization.projects.list()]
    [theirs] = [one.id async for one in globex.admin.organization.projects.list()]
    async with database.publish() as session:
        for project, name, version, state in (
            (web, "support", 1, "ready"),
            (web, "support", 2, "ready"),
            (web, "old", 1, "retired"),
            (theirs, "secret", 1, "ready"),
        ):
            session.add(
                Adapter(id=new_id("adp"), project_id=project, name=name, version=version,
                        digest="d" * 64, rank=8, state=state, created_at=NOON, nbytes=1)
            )  # fmt: skip
    listed = [one.model async for one in rates.list_rate_limits(web)]
    assert listed == ["smol", "org/large", "support"]
    changed = await rates.update_rate_limit(
        "rl-support", project_id=web, max_requests_per_1_minute=3,
        extra_body={"max_tokens_per_1_day": 50},
    )  # fmt: skip
    assert (changed.model, changed.max_requests_per_1_minute) == ("support", 3)
    for missing in ("rl-old", "rl-secret", "rl-nothing"):
        with pytest.raises(openai.NotFoundError):
            await rates.update_rate_limit(missing, project_id=web, max_requests_per_1_minute=3)
    await live.refresh()
    held = live.rules().rates[Subject(Level.PROJECT, web, "support")]
    assert held == Rates(requests_per_minute=3, tokens_per_day=50)


async def test_a_key_is_rotated_with_overlap(clients):
    (acme, globex, _), live = clients
    [web] = [one.id async for one in acme.admin.organization.projects.list()]
    account = await acme.admin.organization.projects.service_accounts.create(web, name="bot")
    old = account.api_key
    path = f"/projects/{web}/api_keys/{old.id}/rotate"
    with pytest.raises(openai.NotFoundError):
        await post(globex, path)
    for wrong in (-1, 91 * 24 * 3600, "1h"):
        with pytest.raises(openai.BadRequestError) as told:
            await post(acme, path, overlap_seconds=wrong)
        assert told.value.param == "overlap_seconds"
    made = await post(acme, path, overlap_seconds=60)
    assert made["replaces"] == old.id
    assert made["owner"]["service_account"]["id"] == account.id
    with pytest.raises(openai.ConflictError):
        await post(acme, path)
    await live.refresh()
    assert live.authenticate(old.value).key == old.id
    assert live.authenticate(made["value"]).key == made["id"]
    shown = await acme.admin.organization.projects.api_keys.retrieve(old.id, project_id=web)
    assert 55 <= shown.expires_at - time.time() <= 61


async def test_an_admin_key_is_rotated_by_whom_its_role_allows(clients):
    (acme, _, _), live = clients
    keys = acme.admin.organization.admin_api_keys
    made = await keys.create(name="a", extra_body={"role": "admin"})
    boss = await keys.create(name="b", extra_body={"role": "owner"})
    await live.refresh()
    as_admin = acme.with_options(admin_api_key=made.value)
    with pytest.raises(openai.PermissionDeniedError, match="Only owners"):
        await post(as_admin, f"/admin_api_keys/{boss.id}/rotate")
    new = await post(as_admin, f"/admin_api_keys/{made.id}/rotate", overlap_seconds=0)
    await live.refresh()
    assert live.authenticate(new["value"]).role == "admin"
    with pytest.raises(Exception, match="Incorrect API key"):
        live.authenticate(made.value)
