"""The official client's ``client.admin``, unchanged, over both databases."""

import openai
import pytest


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

    [limit] = [one async for one in organization.projects.rate_limits.list_rate_limits(made.id)]
    changed = await organization.projects.rate_limits.update_rate_limit(
        limit.id, project_id=made.id, max_requests_per_1_minute=7
    )
    assert (changed.model, changed.max_requests_per_1_minute) == ("smol", 7)
    spend = await organization.projects.spend_limit.update(
        made.id, currency="USD", interval="month", threshold_amount=250
    )
    assert (spend.threshold_amount, spend.enforcement.status) == (250, "enforcing")
    await live.refresh()
    assert sorted(rate.requests_per_minute for rate in live.rules().rates.values()) == [7]

    await organization.projects.api_keys.delete(key.id, project_id=made.id)
    await organization.projects.archive(made.id)
    await live.refresh()
    with pytest.raises(Exception, match="Incorrect API key"):
        live.authenticate(account.api_key.value)
    events = [event.type async for event in organization.audit_logs.list()]
    assert events == ["project.archived", "api_key.deleted", "project.spend_limit.updated",
                      "rate_limit.updated", "api_key.created", "service_account.created",
                      "project.created"]  # fmt: skip
    assert [event async for event in globex.admin.organization.audit_logs.list()] == []
    with pytest.raises(openai.NotFoundError):
        await globex.admin.organization.projects.retrieve(made.id)


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
