"""The official client's ``client.admin``, unchanged, over both databases."""

import json
from datetime import UTC, datetime

import openai
import pytest

from gateway.limits.models import Level
from gateway.limits.rules import Subject
from gateway.limits.service import LimitService


async def test_projects_accounts_keys_limits_and_their_audit(clients):
    (acme, globex, _), live = clients
    organization = acme.admin.organization
    made = await organization.projects.create(name="shop")
    listed = [project async for project in organization.projects.list(limit=1)]
    assert [project.name for project in listed] == ["web", "shop"]
    account = await organization.projects.service_accounts.create(made.id, name="bot")
    await live.refresh()
    assert live.authenticate(account.api_key.value).project == made.id
    [key] = [key async for key in organization.projects.api_keys.list(made.id)]
    assert key.owner.service_account.id == account.id
    assert account.api_key.value not in key.to_json()

    rates = organization.projects.rate_limits
    limit, other = [one async for one in rates.list_rate_limits(made.id)]
    changed = await rates.update_rate_limit(
        other.id, project_id=made.id, max_tokens_per_1_minute=100
    )
    assert (changed.model, changed.max_tokens_per_1_minute) == ("org/large", 100)
    changed = await organization.projects.rate_limits.update_rate_limit(
        limit.id, project_id=made.id, max_requests_per_1_minute=7
    )
    assert (changed.model, changed.max_requests_per_1_minute) == ("smol", 7)
    spend = await organization.projects.spend_limit.update(
        made.id, currency="USD", interval="month", threshold_amount=250
    )
    assert (spend.threshold_amount, spend.enforcement.status) == (250, "enforcing")
    await live.refresh()
    assert {rate.requests_per_minute for rate in live.rules().rates.values()} == {None, 7}

    await organization.projects.api_keys.delete(key.id, project_id=made.id)
    await organization.projects.archive(made.id)
    await live.refresh()
    with pytest.raises(Exception, match="Incorrect API key"):
        live.authenticate(account.api_key.value)
    events = [event.type async for event in organization.audit_logs.list()]
    assert events == ["project.archived", "api_key.deleted", "project.spend_limit.updated",
                      "rate_limit.updated", "rate_limit.updated", "api_key.created",
                      "service_account.created",
                      "project.created"]  # fmt: skip
    assert [event async for event in globex.admin.organization.audit_logs.list()] == []
    with pytest.raises(openai.NotFoundError):
        await globex.admin.organization.projects.retrieve(made.id)


async def test_projects_accounts_and_keys_are_changed(clients):
    (acme, _, _), live = clients
    organization = acme.admin.organization
    made = await organization.projects.create(name="shop")
    assert (await organization.projects.update(made.id, name="store")).name == "store"
    with pytest.raises(openai.ConflictError):
        await organization.projects.update(made.id, name="web")
    accounts = organization.projects.service_accounts
    account = await accounts.create(made.id, name="bot")
    changed = await accounts.update(account.id, project_id=made.id, name="robot", role="owner")
    assert (changed.name, changed.role) == ("robot", "owner")
    assert (await accounts.retrieve(account.id, project_id=made.id)).name == "robot"
    second = await accounts.api_keys.create(account.id, project_id=made.id, name="second")
    await live.refresh()
    who = live.authenticate(second.value)
    assert (who.project, who.project_name) == (made.id, "store")
    keys = organization.projects.api_keys
    kept = await keys.update(second.id, project_id=made.id, expires_in_seconds=60)
    assert 0 < kept.expires_at - datetime.now(UTC).timestamp() <= 60
    for wrong in ({}, {"scopes": ["api.all.read"]}, {"expires_in_seconds": 0}):
        with pytest.raises(openai.BadRequestError):
            await keys.update(second.id, project_id=made.id, **wrong)
    assert (await accounts.delete(account.id, project_id=made.id)).deleted
    await live.refresh()
    with pytest.raises(Exception, match="Incorrect API key"):
        live.authenticate(second.value)
    events = [event.type async for event in organization.audit_logs.list()]
    assert events == ["service_account.deleted", "api_key.updated", "api_key.created",
                      "service_account.updated", "api_key.created", "service_account.created",
                      "project.updated", "project.created"]  # fmt: skip


async def test_admin_keys_are_made_shown_once_and_stopped(clients):
    (acme, _, _), live = clients
    keys = acme.admin.organization.admin_api_keys
    made = await keys.create(name="second")
    await live.refresh()
    assert live.authenticate(made.value).admin
    assert len([key async for key in keys.list()]) == 2
    assert (await keys.delete(made.id)).deleted


async def test_only_admin_keys_come_in(clients):
    (_, _, tenant), _ = clients
    with pytest.raises(openai.PermissionDeniedError):
        await tenant.admin.organization.projects.list()


async def test_the_key_is_looked_at_before_anything_else(clients):
    (acme, _, tenant), _ = clients
    for key, status in ((None, 401), ("sk-wrong", 401), (tenant.admin_api_key, 403)):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        for method, path, body in (
            ("POST", "projects", b"no json"),
            ("POST", "projects", b"{" * 100_000),
            ("POST", "spend_limit", b"{}"),
            ("GET", "projects?limit=many", b""),
        ):
            answer = await acme._client.request(
                method, f"http://gateway/v1/organization/{path}", headers=headers, content=body
            )
            assert answer.status_code == status, (key, method, path, answer.text)


BODIES = [
    (b'{"name": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400),
    (b'{"name": "\\ud83d", "max_requests_per_1_minute": 5}', 400),
    (b'{"name": NaN}', 400),
    (b'{"max_requests_per_1_minute": ' + b"9" * 300 + b"}", 400),
    (b'{"max_requests_per_1_minute": 18446744073709551616}', 400),
    (b'\xef\xbb\xbf{"name": "shop"}', 400),
    ('{"name": "shop"}'.encode("utf-16"), 400),
    (b'{"name": "\xff"}', 400),
    (b"[]", 400),
    (b'{"name": "' + b"x" * (1 << 16) + b'"}', 413),
]


@pytest.mark.parametrize("path", ["projects", "projects/{}/rate_limits/rl-smol", "spend_limit"])
async def test_bodies_are_read_as_those_of_inference_are(clients, path):
    (acme, _, _), _ = clients
    (project,) = [one.id async for one in acme.admin.organization.projects.list()]
    url = f"http://gateway/v1/organization/{path.format(project)}"
    for body, status in BODIES:
        answer = await _post(acme, url, body)
        assert (answer.status_code, body[:60]) == (status, body[:60])
        assert answer.json()["error"]["message"]
    for header in ({"content-encoding": "gzip"}, {"content-type": "text/plain"}):
        answer = await _post(acme, url, b"{}", **header)
        assert answer.status_code == 415


async def _post(acme, url, body, **headers):
    headers = {"authorization": f"Bearer {acme.admin_api_key}", **headers}
    return await acme._client.request("POST", url, headers=headers, content=body)


async def test_the_audit_log_keeps_what_was_asked_of_a_rate_and_nothing_else(clients):
    (acme, _, _), _ = clients
    organization = acme.admin.organization
    (project,) = [one.id async for one in organization.projects.list()]
    await organization.projects.rate_limits.update_rate_limit(
        "rl-smol", project_id=project, max_requests_per_1_minute=7, extra_body={"x": "y" * 9999}
    )
    (event,) = [one async for one in organization.audit_logs.list()]
    assert event.rate_limit_updated.changes_requested.to_dict() == {"max_requests_per_1_minute": 7}


@pytest.mark.parametrize(
    ("asked", "shown", "ignored"),
    [({"max_concurrent_requests": None}, {"max_concurrent_requests": None}, None),
     ({"max_requests_per_1_minute": 2**31 - 1}, {"max_requests_per_1_minute": 2**31 - 1}, None),
     ({"max_tokens_per_1_day": None, "max_concurrent_requests": 1}, {"max_concurrent_requests": 1},
      None),
     ({"max_request_per_1_minute": 9, "model": "smol"}, {"max_concurrent_requests": 0},
      "max_request_per_1_minute")],
    ids=["null", "as_shown", "one", "misspelt"],
)  # fmt: skip
async def test_a_rate_is_taken_away_again_and_a_misspelt_one_is_named(
    clients, asked, shown, ignored
):
    (acme, _, _), live = clients
    (project,) = [one.id async for one in acme.admin.organization.projects.list()]
    url = f"http://gateway/v1/organization/projects/{project}/rate_limits/rl-smol"
    await _post(acme, url, b'{"max_concurrent_requests":0,"max_requests_per_1_minute":3}')
    got = await _post(acme, url, json.dumps(asked).encode())
    assert got.json() == got.json() | shown
    assert got.headers.get("x-ignored-params") == ignored
    await live.refresh()
    [rates] = live.rules().rates.values()
    assert rates.concurrency == got.json()["max_concurrent_requests"]
    assert rates.requests_per_minute in (None, 3)


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [("rate_limits/rl-smol", {"max_requests_per_1_minute": -1}, "max_requests_per_1_minute"),
     ("rate_limits/rl-smol", {"max_tokens_per_1_day": 10**13}, "max_tokens_per_1_day"),
     ("spend_limit", {"threshold_amount": 500, "threshold_nano_usd": 100}, "threshold_nano_usd")],
)  # fmt: skip
async def test_an_amount_that_is_none_is_refused_by_the_name_it_was_sent_under(
    clients, path, asked, param
):
    (acme, _, _), _ = clients
    (project,) = [one.id async for one in acme.admin.organization.projects.list()]
    url = f"http://gateway/v1/organization/projects/{project}/{path}"
    got = await _post(acme, url, json.dumps(asked).encode())
    assert (got.status_code, got.json()["error"]["param"]) == (400, param)


async def test_a_new_amount_leaves_a_budgets_zone_and_end_as_they_are(clients, database):
    (acme, _, _), live = clients
    organization = acme.admin.organization
    (project,) = [one.id async for one in organization.projects.list()]
    whose = (await live.recognise(acme.admin_api_key)).organisation
    subject = Subject(Level.PROJECT, project)
    async with database.publish() as session:
        await LimitService(session, whose, datetime.now(UTC)).set_budget(
            subject, "month", 5, time_zone="Europe/Zurich", on_exhaust="finish"
        )
    await organization.projects.spend_limit.update(
        project, currency="USD", interval="month", threshold_amount=250
    )
    await live.refresh()
    [money] = live.rules().allowances[subject]
    assert (money.nano, money.time_zone, money.soft) == (250 * 10**7, "Europe/Zurich", True)
