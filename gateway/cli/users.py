"""``loratorio user``: who signs in to the dashboard.

A password is asked for, or read from standard input where that is no terminal; with neither, one
is made up and told once.
"""

import argparse
import getpass
import sys
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.table import Row
from gateway.errors import InvalidRequest
from gateway.identity.login_repository import Found, LoginRepository
from gateway.identity.logins import LoginService
from gateway.identity.models import Role, User
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.passwords import Passwords, made_up
from gateway.identity.people import checked_email, checked_person
from gateway.identity.service import IdentityService
from gateway.ids import new_id

OPERATOR = "operator"


def add(group: Commands) -> None:
    made = add_command(group, "add", create, help="let somebody sign in", make=True)
    made.add_argument("email", metavar="EMAIL")
    whose = made.add_mutually_exclusive_group(required=True)
    whose.add_argument("--operator", action="store_true", help="sees every organisation")
    whose.add_argument("--organisation", metavar="ORG", help="a person of this one")
    made.add_argument("--role", choices=tuple(map(str, Role)), default=str(Role.VIEWER),
                      help="in the organisation (default: %(default)s)")  # fmt: skip
    made.add_argument("--name", metavar="NAME", help="as the dashboard calls them")
    _take_password(made)
    changed = add_command(group, "password", password, help="give somebody a new password")
    changed.add_argument("email", metavar="EMAIL")
    changed.add_argument("--organisation", metavar="ORG", help="if they are in several")
    _take_password(changed)
    add_command(group, "list", list_all, help="list who can sign in")
    gone = add_command(group, "revoke", revoke, help="let somebody sign in no more")
    gone.add_argument("email", metavar="EMAIL")
    gone.add_argument("--organisation", metavar="ORG", help="if they are in several")


def _take_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--password-stdin", action="store_true",
                        help="read the password from standard input")  # fmt: skip


async def create(desk: Desk, arguments: argparse.Namespace) -> Row:
    text, told = _chosen(arguments)
    hashed = await Passwords().hash(text)
    async with desk.database.publish() as session:
        service = LoginService(session, desk.now)
        if arguments.operator:
            login = await service.make_operator(arguments.email, hashed)
            return {"id": login.id, "email": login.email, "may": OPERATOR} | told
        owner = await IdentityService(session, desk.now).organisation(arguments.organisation)
        rows = OrganisationRepository(session, owner.id)
        email = checked_email(arguments.email)
        user = next((row for row in await rows.people() if row.email == email), None)
        if user is None:
            user = User(
                id=new_id("user"),
                organisation_id=owner.id,
                email=email,
                name=checked_person(arguments.name or email.partition("@")[0]),
                role=arguments.role,
                created_at=desk.now,
                removed_at=None,
            )
            rows.add(user)
            await session.flush()
            await desk.note(
                session, owner.id, "user.added", user.id, change={"role": arguments.role}
            )
        login = await service.make(user, hashed)
        await desk.note(session, owner.id, "login.created", login.id, change={"user": user.id})
        return {"id": login.id, "email": email, "organisation": owner.name, "may": user.role} | told


async def password(desk: Desk, arguments: argparse.Namespace) -> Row:
    text, told = _chosen(arguments)
    hashed = await Passwords().hash(text)
    async with desk.database.publish() as session:
        service = LoginService(session, desk.now)
        login, user = await _named(desk, service, session, arguments)
        await service.set_password(login, hashed)
        if user is not None:
            await desk.note(session, user.organisation_id, "login.updated", login.id)
        return {"id": login.id, "email": arguments.email} | told


async def list_all(desk: Desk, _arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        rows = LoginRepository(session)
        return [
            {
                "id": login.id,
                "email": user.email if user else login.email,
                "organisation": await rows.organisation_name(user.organisation_id) if user else "",
                "may": user.role if user else OPERATOR,
                "created": login.created_at,
            }
            for login, user in await rows.live()
        ]


async def revoke(desk: Desk, arguments: argparse.Namespace) -> Row:
    async with desk.database.publish() as session:
        service = LoginService(session, desk.now)
        login, user = await _named(desk, service, session, arguments)
        await service.end(login)
        if user is not None:
            await desk.note(session, user.organisation_id, "login.deleted", login.id)
        return {"id": login.id, "email": arguments.email, "revoked": login.ended_at}


async def _named(
    desk: Desk, service: LoginService, session: AsyncSession, arguments: argparse.Namespace
) -> Found:
    owner = None
    if arguments.organisation:
        owner = (await IdentityService(session, desk.now).organisation(arguments.organisation)).id
    return await service.find(arguments.email, owner)


def _chosen(arguments: argparse.Namespace) -> tuple[str, Row]:
    """The password, and what of it is told: only one that was made up."""
    if arguments.password_stdin:
        return sys.stdin.readline().rstrip("\n"), {}
    if not sys.stdin.isatty():
        text = made_up()
        return text, {"password": text}
    text = getpass.getpass("New password (empty: one is made up): ")
    if not text:
        text = made_up()
        return text, {"password": text}
    if getpass.getpass("Again: ") != text:
        raise InvalidRequest("The two are not the same.", param="password")
    return text, {}
