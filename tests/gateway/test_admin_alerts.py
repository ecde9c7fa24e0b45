"""Spend alerts through the official client."""

import openai
import pytest

MONTHLY = {"currency": "USD", "interval": "month"}
MAIL = {"type": "email", "recipients": ["ann@acme.example"], "subject_prefix": "[spend]"}


async def test_alerts_are_made_listed_changed_and_deleted(clients):
    (acme, globex, _), _ = clients
    organization = acme.admin.organization
    [project] = [one async for one in organization.projects.list()]
    for alerts, args in (
        (organization.spend_alerts, ()),
        (organization.projects.spend_alerts, (project.id,)),
    ):
        made = [
            await alerts.create(*args, **MONTHLY, threshold_amount=cents, notification_channel=MAIL)
            for cents in (100, 200, 300)
        ]
        assert [one.threshold_amount for one in made] == [100, 200, 300]
        assert made[0].notification_channel.to_dict() == MAIL
        assert [one.id async for one in alerts.list(*args, limit=1)] == [one.id for one in made]
        newest = await alerts.list(*args, order="desc", limit=2)
        assert [one.threshold_amount for one in newest.data] == [300, 200]
        assert newest.has_more
        before = await alerts.list(*args, before=made[2].id, limit=1)
        assert [one.id for one in before.data] == [made[1].id]

        project_id = {"project_id": project.id} if args else {}
        changed = await alerts.update(
            made[0].id, **project_id, **MONTHLY, threshold_amount=150,
            notification_channel={"type": "email", "recipients": ["bob@acme.example"]},
        )  # fmt: skip
        found = await alerts.retrieve(made[0].id, **project_id)
        assert found == changed
        assert (found.threshold_amount, found.notification_channel.recipients) == (
            150, ["bob@acme.example"],
        )  # fmt: skip
        assert (await alerts.delete(made[0].id, **project_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await alerts.retrieve(made[0].id, **project_id)
        with pytest.raises(openai.NotFoundError):  # of the other of the two
            await (organization.projects.spend_alerts.retrieve(made[1].id, project_id=project.id)
                   if not args else organization.spend_alerts.retrieve(made[1].id))  # fmt: skip
    assert [one async for one in globex.admin.organization.spend_alerts.list()] == []
    with pytest.raises(openai.NotFoundError):
        await globex.admin.organization.spend_alerts.delete(made[1].id)
    kinds = {event.type async for event in organization.audit_logs.list()}
    assert kinds == {f"{owner}.spend_alert.{what}" for owner in ("organization", "project")
                     for what in ("created", "updated", "deleted")}  # fmt: skip


BAD = [
    ({"threshold_amount": 0}, "threshold_amount"),
    ({"threshold_amount": -5}, "threshold_amount"),
    ({"threshold_amount": 10**18}, "threshold_amount"),
    ({"threshold_amount": True}, "threshold_amount"),
    ({"threshold_amount": 1.5}, "threshold_amount"),
    ({"currency": "EUR"}, "currency"),
    ({"interval": "day"}, "interval"),
    ({"notification_channel": "mail"}, "notification_channel"),
    ({"notification_channel": {"type": "sms"}}, "notification_channel.type"),
    ({"notification_channel": MAIL | {"recipients": []}}, "notification_channel.recipients"),
    ({"notification_channel": MAIL | {"recipients": ["a@b"] * 21}},
     "notification_channel.recipients"),
    ({"notification_channel": MAIL | {"recipients": ["a@b", "x@y\r\nBcc: z@w"]}},
     "notification_channel.recipients[1]"),
    ({"notification_channel": MAIL | {"subject_prefix": "a\nb"}},
     "notification_channel.subject_prefix"),
]  # fmt: skip


async def test_what_is_wrong_with_an_alert_is_named(clients):
    alerts = clients[0][0].admin.organization.spend_alerts
    for wrong, param in BAD:
        body = {**MONTHLY, "threshold_amount": 1, "notification_channel": MAIL} | wrong
        with pytest.raises(openai.BadRequestError) as told:
            await alerts.create(**body)
        assert told.value.param == param, wrong
    assert [one async for one in alerts.list()] == []
