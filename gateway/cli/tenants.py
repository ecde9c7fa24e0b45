"""``loratorio tenant``: projects, the unit of isolation."""

import argparse
from collections.abc import Sequence

from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.table import Row
from gateway.errors import InvalidRequest
from gateway.identity.models import Project
from gateway.identity.repository import IdentityRepository
from gateway.identity.service import DEFAULT_ORGANISATION, IdentityService
from gateway.responses.repository import RetentionRepository
from gateway.texts.repository import TextRepository
from gateway.texts.terms import MOST_DAYS as MOST_TEXT_DAYS
from gateway.texts.terms import fingerprint

MOST_DAYS = 3650

LENIENT, STRICT = POLICIES = ("lenient", "strict")


def add(group: Commands) -> None:
    made = add_command(group, "create", create, help="make a tenant", make=True)
    made.add_argument("name", metavar="NAME")
    made.add_argument(
        "--organisation",
        default=DEFAULT_ORGANISATION,
        metavar="ORG",
        help="who pays; made if new (default: %(default)s)",
    )
    read = add_command(
        group, "fields", fields, help="whether requests with unknown fields are refused"
    )
    read.add_argument("name", metavar="NAME", help="or ORGANISATION/NAME")
    read.add_argument("policy", choices=POLICIES, help="lenient: they are ignored and named")
    add_command(group, "list", list_all, help="list the tenants")
    kept = add_command(group, "retention", retention, help="how long its responses are kept")
    kept.add_argument("name", metavar="NAME", help="or ORGANISATION/NAME")
    kept.add_argument("--days", type=int, required=True, metavar="N", help="0: none is kept")
    texts = add_command(group, "texts", keep_texts, help="whether texts of its requests are kept")
    texts.add_argument("name", metavar="NAME", help="or ORGANISATION/NAME")
    texts.add_argument("--days", type=int, required=True, metavar="N",
                       help="0: none is, and those there were are erased")  # fmt: skip
    erased = add_command(group, "erase-texts", erase_texts, help="erase texts of its requests")
    erased.add_argument("name", metavar="NAME", help="or ORGANISATION/NAME")
    erased.add_argument("--customer", metavar="ID", help="of this customer of its alone")
    heavy = add_command(group, "weight", weight, help="its share of a busy engine, against others'")
    heavy.add_argument("name", metavar="NAME", help="or ORGANISATION/NAME; or an organisation's")
    heavy.add_argument("--weight", type=int, metavar="N", help="1 to 1000; without: as above it")
    heavy.add_argument("--organisation", action="store_true", help="of each project of it")
    gone = add_command(group, "revoke", revoke, help="archive a tenant: all its keys stop")
    gone.add_argument("name", metavar="NAME", help="or ORGANISATION/NAME")


async def create(desk: Desk, arguments: argparse.Namespace) -> Row:
    async with desk.database.publish() as session:
        known = await IdentityRepository(session).organisation(arguments.organisation)
        service = IdentityService(session, desk.now)
        project = await service.create_project(arguments.name, arguments.organisation)
        owner = project.organisation_id
        if known is None:
            change = {"name": arguments.organisation}
            await desk.note(session, owner, "organization.created", owner, change=change)
        await desk.note(session, owner, "project.created", project.id, project=project.id,
                        change={"name": project.name})  # fmt: skip
        return _row(project)


async def list_all(desk: Desk, _arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        return [_row(project) for project in await IdentityRepository(session).projects()]


async def fields(desk: Desk, arguments: argparse.Namespace) -> Row:
    async with desk.database.publish() as session:
        service = IdentityService(session, desk.now)
        project = await service.set_strict(arguments.name, arguments.policy == STRICT)
        await desk.note(session, project.organisation_id, "project.updated", project.id,
                        project=project.id,
                        change={"unknown_fields": arguments.policy})  # fmt: skip
        return _row(project)


async def weight(desk: Desk, arguments: argparse.Namespace) -> Row:
    async with desk.database.publish() as session:
        service, change = IdentityService(session, desk.now), {"weight": arguments.weight}
        if arguments.organisation:
            owner = await service.set_organisation_weight(arguments.name, arguments.weight)
            await desk.note(session, owner.id, "organization.updated", owner.id, change=change)
            return {"organisation": owner.name, "weight": owner.weight}
        project = await service.set_weight(arguments.name, arguments.weight)
        await desk.note(session, project.organisation_id, "project.updated", project.id,
                        project=project.id, change=change)  # fmt: skip
        return _row(project) | {"weight": project.weight}


async def revoke(desk: Desk, arguments: argparse.Namespace) -> Row:
    async with desk.database.publish() as session:
        project = await IdentityService(session, desk.now).archive(arguments.name)
        await desk.note(session, project.organisation_id, "project.archived", project.id,
                        project=project.id)  # fmt: skip
        return _row(project) | {"archived": project.archived_at}


async def retention(desk: Desk, arguments: argparse.Namespace) -> Row:
    if not 0 <= arguments.days <= MOST_DAYS:
        raise InvalidRequest(f"--days must be from 0 to {MOST_DAYS}.", param="days")
    async with desk.database.publish() as session:
        project = await IdentityService(session, desk.now).project(arguments.name)
        await RetentionRepository(session, project.id).set(arguments.days)
        await desk.note(session, project.organisation_id, "project.updated", project.id,
                        project=project.id, change={"response_days": arguments.days})  # fmt: skip
        return {"name": project.name, "days": arguments.days}


async def keep_texts(desk: Desk, arguments: argparse.Namespace) -> Row:
    if not 0 <= arguments.days <= MOST_TEXT_DAYS:
        raise InvalidRequest(f"--days must be from 0 to {MOST_TEXT_DAYS}.", param="days")
    async with desk.database.publish() as session:
        project = await IdentityService(session, desk.now).project(arguments.name)
        project.text_days = arguments.days or None
        rows = TextRepository(session, project.organisation_id)
        erased = 0 if arguments.days else await rows.erase(project.id)
        await desk.note(session, project.organisation_id, "project.updated", project.id,
                        project=project.id,
                        change={"text_days": arguments.days, "erased": erased})  # fmt: skip
        return {"name": project.name, "days": arguments.days, "erased": erased}


async def erase_texts(desk: Desk, arguments: argparse.Namespace) -> Row:
    async with desk.database.publish() as session:
        project = await IdentityService(session, desk.now).project(arguments.name)
        rows = TextRepository(session, project.organisation_id)
        erased = await rows.erase(project.id, arguments.customer)
        of = fingerprint(arguments.customer) if arguments.customer else "everybody"
        await desk.note(session, project.organisation_id, "project.texts_erased", project.id,
                        project=project.id, change={"of": of, "erased": erased})  # fmt: skip
        return {"name": project.name, "erased": erased}


def _row(project: Project) -> Row:
    return {
        "id": project.id,
        "organisation": project.organisation.name,
        "name": project.name,
        "fields": STRICT if project.strict else LENIENT,
        "created": project.created_at,
    }
