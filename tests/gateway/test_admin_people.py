"""People, their roles, and admin keys that act with them."""

import openai
import pytest

OBJECT = {"cast_to": object, "options": {"security": {"admin_api_key_auth": True}}}


async def call(client, path, body):
    return await client.post(f"/organization{path}", body=body, **OBJECT)


async def add(client, email, role, **more):
    return (await call(client, "/users", {"email": email, "name": email, "role": role}))["id"]


async def test_people_are_added_changed_and_removed(clients):
    (acme, globex, _), live = clients
    organization = acme.admin.organization
    ann = await add(acme, "Ann@acme.example", "viewer")
    users = [user async for user in organization.users.list(emails=["ann@acme.example"])]
    assert [(user.id, user.role, user.user.email) for user in users] == [
        (ann, "viewer", "ann@acme.example")
    ]
    assert [user async for user in organization.users.list(emails=["x@acme.example"])] == []
    assert (await organization.users.update(ann, role="developer")).role == "developer"
    assert (await organization.users.update(ann, role="reader")).role == "viewer"
    with pytest.raises(openai.ConflictError):
        await add(acme, "ann@acme.example", "viewer")
    for client in (globex,):
        with pytest.raises(openai.NotFoundError):
            await client.admin.organization.users.retrieve(ann)

    key = await organization.admin_api_keys.create(name="ann", extra_body={"user_id": ann})
    await live.refresh()
    assert live.authenticate(key.value).role == "viewer"
    assert key.owner.id == ann
    await organization.users.update(ann, role="billing")
    await live.refresh()
    assert live.authenticate(key.value).role == "billing"
    assert (await organization.users.delete(ann)).deleted
    await live.refresh()
    with pytest.raises(Exception, match="Incorrect API key"):
        live.authenticate(key.value)
    with pytest.raises(openai.NotFoundError):
        await organization.users.retrieve(ann)
    await add(acme, "ann@acme.example", "viewer")  # the address is free again
    events = [e.type async for e in organization.audit_logs.list(resource_ids=[ann])]
    assert events == ["user.deleted", *["user.updated"] * 3, "user.added"]


async def test_a_role_in_a_project_adds_to_the_one_in_the_organisation(clients):
    (acme, _, _), live = clients
    organization = acme.admin.organization
    [web] = [one async for one in organization.projects.list()]
    shop = await organization.projects.create(name="shop")
    bob = await add(acme, "bob@acme.example", "viewer")
    member = await organization.projects.users.create(web.id, user_id=bob, role="member")
    assert (member.role, member.email) == ("developer", "bob@acme.example")
    key = await organization.admin_api_keys.create(name="bob", extra_body={"user_id": bob})
    await live.refresh()
    as_bob = acme.with_options(admin_api_key=key.value).admin.organization
    accounts = as_bob.projects.service_accounts
    made = await accounts.create(web.id, name="bot")
    assert made.api_key.value
    with pytest.raises(openai.PermissionDeniedError, match=r"keys\.change"):
        await accounts.create(shop.id, name="bot")
    with pytest.raises(openai.PermissionDeniedError):
        await as_bob.projects.archive(web.id)
    await organization.projects.users.update(bob, project_id=web.id, role="admin")
    await live.refresh()
    await as_bob.projects.archive(web.id)
    members = organization.projects.users
    assert [one.id async for one in members.list(web.id)] == [bob]
    assert (await members.delete(bob, project_id=web.id)).deleted
    assert [one.id async for one in members.list(web.id)] == []


async def test_owners_alone_make_and_end_owners(clients):
    (acme, _, _), live = clients
    keys = acme.admin.organization.admin_api_keys
    boss = await add(acme, "boss@acme.example", "owner")
    made = await keys.create(name="admin", extra_body={"role": "admin"})
    assert made.owner.role == "admin"
    owner_key = await keys.create(name="another")
    assert owner_key.owner.role == "owner"
    await live.refresh()
    as_admin = acme.with_options(admin_api_key=made.value)
    people = as_admin.admin.organization.users
    own = await as_admin.admin.organization.admin_api_keys.create(name="own")
    assert own.owner.role == "admin"
    for attempt in (
        lambda: people.update(boss, role="viewer"),
        lambda: people.delete(boss),
        lambda: add(as_admin, "me@acme.example", "owner"),
        lambda: as_admin.admin.organization.admin_api_keys.create(
            name="up", extra_body={"role": "owner"}
        ),
        lambda: as_admin.admin.organization.admin_api_keys.create(
            name="up", extra_body={"user_id": boss}
        ),
        lambda: as_admin.admin.organization.admin_api_keys.delete(owner_key.id),
    ):
        with pytest.raises(openai.PermissionDeniedError, match="Only owners"):
            await attempt()
    assert (await people.retrieve(boss)).role == "owner"


async def test_what_is_wrong_with_a_user_is_named(clients):
    (acme, _, _), _ = clients
    good = {"email": "a@b", "name": "A", "role": "viewer"}
    for wrong, param in (
        ({"email": "nobody"}, "email"),
        ({"email": "a@b\r\nx: y"}, "email"),
        ({"email": 3}, "email"),
        ({"name": ""}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"name": "a" * 129}, "name"),
        ({"role": "king"}, "role"),
        ({"role": None}, "role"),
    ):
        with pytest.raises(openai.BadRequestError) as told:
            await call(acme, "/users", good | wrong)
        assert told.value.param == param, wrong


async def test_an_invite_is_made_listed_and_taken_back(clients):
    (acme, globex, _), _ = clients
    organization = acme.admin.organization
    (project,) = [row.id async for row in organization.projects.list()][:1]
    made = await organization.invites.create(
        email="New@acme.example", role="reader", projects=[{"id": project, "role": "member"}]
    )
    assert (made.email, made.role, made.status) == ("new@acme.example", "viewer", "pending")
    assert [(each.id, each.role) for each in made.projects] == [(project, "developer")]
    assert made.expires_at - made.created_at == 7 * 86400
    assert [row.id async for row in organization.invites.list()] == [made.id]
    assert (await organization.invites.retrieve(made.id)) == made
    with pytest.raises(openai.ConflictError, match="invited already"):
        await organization.invites.create(email="new@acme.example", role="reader")
    for call_of in (globex.admin.organization.invites.retrieve,
                    globex.admin.organization.invites.delete):  # fmt: skip
        with pytest.raises(openai.NotFoundError):
            await call_of(made.id)
    with pytest.raises(openai.NotFoundError) as refused:
        await globex.admin.organization.invites.create(
            email="x@globex.example", role="reader", projects=[{"id": project, "role": "member"}]
        )
    assert refused.value.param == "projects[0].id"
    with pytest.raises(openai.BadRequestError, match="role"):
        await organization.invites.create(email="y@acme.example", role="king")  # type: ignore[arg-type]
    gone = await organization.invites.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    assert [row async for row in organization.invites.list()] == []
    kinds = [event.type async for event in organization.audit_logs.list()]
    assert kinds[:2] == ["invite.deleted", "invite.sent"]


async def test_the_audit_log_is_filtered_and_paged(clients):
    (acme, _, _), _ = clients
    for n in range(5):
        await acme.admin.organization.projects.create(name=f"p{n}")
    log = acme.admin.organization.audit_logs
    every = [event async for event in log.list(limit=2)]
    assert len(every) == 5
    page = await log.list(before=every[2].id, limit=1)
    assert ([event.id for event in page.data], page.has_more) == ([every[1].id], True)
    at = every[0].effective_at
    assert [e async for e in log.list(effective_at={"gt": at + 1000})] == []
    assert len([e async for e in log.list(effective_at={"lte": at + 1000})]) == 5
    assert [e async for e in log.list(event_types=["login.succeeded"])] == []
    with pytest.raises(openai.BadRequestError, match="actor_emails"):
        await log.list(actor_emails=["a@b"])
