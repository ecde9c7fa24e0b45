"""``loratorio key``: API keys. A key's text is printed once, when it is made."""

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.table import Row
from gateway.errors import InvalidRequest
from gateway.identity.models import ApiKey, Role
from gateway.identity.repository import IdentityRepository
from gateway.identity.service import (
    DEFAULT_ORGANISATION,
    SCOPES,
    IdentityService,
    KeyTerms,
)

SPAN = re.compile(r"([1-9][0-9]{0,4})([hdw])", re.ASCII)
HOURS = {"h": 1, "d": 24, "w": 7 * 24}


def add(group: Commands) -> None:
    made = add_command(group, "create", create, help="make a key and print it, once")
    made.add_argument("--tenant", metavar="NAME", help="whose key it is")
    made.add_argument("--name", default="default", help="to tell keys apart")
    made.add_argument(
        "--rpm", type=int, metavar="N", help="requests per minute (default: no limit)"
    )
    made.add_argument("--tpm", type=int, metavar="N", help="tokens per minute (default: no limit)")
    made.add_argument("--expires", metavar="WHEN", help="12h, 30d, 8w, or a date and time in UTC")
    made.add_argument("--environment", default="live", help="in the key: sk-live-…")
    made.add_argument(
        "--admin", action="store_true", help="a key of the organisation; it calls no model"
    )
    made.add_argument(
        "--role", choices=[str(role) for role in Role], help="of an admin key (default: owner)"
    )
    made.add_argument("--organisation", default=DEFAULT_ORGANISATION, help="of an admin key")
    made.add_argument("--endpoints", nargs="+", metavar="PATH", help="paths it may be used for")
    made.add_argument("--models", nargs="+", metavar="NAME", help="models it may be used for")
    made.add_argument("--networks", nargs="+", metavar="RANGE", help="where from: 10.0.0.0/8")
    turned = add_command(group, "rotate", rotate, help="make a key that takes another's place")
    turned.add_argument("key", metavar="KEYID", help="its id, as `key list` shows it")
    turned.add_argument(
        "--overlap", default="24h", metavar="SPAN",
        help="how long the old one goes on working: 0, 12h, 30d (default: %(default)s)",
    )  # fmt: skip
    turned.add_argument("--environment", default="live", help="in the key: sk-live-…")
    listed = add_command(group, "list", list_all, help="list the keys, without their secrets")
    listed.add_argument("--tenant", metavar="NAME", help="of this tenant only")
    gone = add_command(group, "revoke", revoke, help="stop a key, for ever")
    gone.add_argument("key", metavar="KEYID", help="its id, as `key list` shows it")


async def create(desk: Desk, arguments: argparse.Namespace) -> Row:
    terms = KeyTerms(
        name=arguments.name,
        requests_per_minute=arguments.rpm,
        tokens_per_minute=arguments.tpm,
        expires_at=parse_expiry(arguments.expires, desk.now) if arguments.expires else None,
        **{what: tuple(given) if (given := getattr(arguments, what)) else None for what in SCOPES},
    )
    if arguments.admin and any(getattr(arguments, what) for what in SCOPES):
        raise InvalidRequest("--endpoints, --models and --networks are for keys that call models")
    if bool(arguments.tenant) == arguments.admin:
        raise InvalidRequest("give --tenant NAME for a key that calls models, or --admin")
    if arguments.role and not arguments.admin:
        raise InvalidRequest("--role is of an --admin key")
    role = Role(arguments.role) if arguments.role else None
    peppers = desk.peppers()
    async with desk.database.publish() as session:
        service = IdentityService(session, desk.now)
        if arguments.admin:
            organisation = await service.organisation(arguments.organisation)
            key = service.issue_admin(organisation, terms, peppers=peppers, role=role)
            await desk.note(session, organisation.id, "api_key.created", key.id,
                            change={"role": role})  # fmt: skip
        else:
            project = await service.project(arguments.tenant)
            key = service.issue(project, terms, peppers=peppers, environment=arguments.environment)
            await desk.note(session, project.organisation_id, "api_key.created", key.id,
                            project=project.id)  # fmt: skip
    return {"id": key.id, "name": terms.name, "expires": terms.expires_at, "key": key.text}


async def rotate(desk: Desk, arguments: argparse.Namespace) -> Row:
    peppers = desk.peppers()
    overlap = timedelta(0)
    if arguments.overlap != "0":
        overlap = parse_expiry(arguments.overlap, desk.now) - desk.now
    async with desk.database.publish() as session:
        service = IdentityService(session, desk.now)
        key = await service.rotate(
            arguments.key, overlap, peppers=peppers, environment=arguments.environment
        )
        await session.flush()
        rows = IdentityRepository(session)
        old, new = await rows.key(arguments.key), await rows.key(key.id)
        assert old is not None
        assert new is not None
        for row, kind in ((new, "api_key.created"), (old, "api_key.updated")):
            await desk.note(session, row.organisation_id, kind, row.id, project=row.project_id,
                            change={"rotation": new.id, "of": old.id})  # fmt: skip
        return {
            "id": key.id, "name": new.name, "expires": new.expires_at, "key": key.text,
            "replaces": old.id, "old_expires": old.expires_at,
        }  # fmt: skip


async def list_all(desk: Desk, arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        project = None
        if arguments.tenant:
            project = (await IdentityService(session, desk.now).project(arguments.tenant)).id
        return [_row(key, desk.now) for key in await IdentityRepository(session).keys(project)]


async def revoke(desk: Desk, arguments: argparse.Namespace) -> Row:
    async with desk.database.publish() as session:
        key = await IdentityService(session, desk.now).revoke(arguments.key)
        await desk.note(session, key.organisation_id, "api_key.deleted", key.id,
                        project=key.project_id)  # fmt: skip
        return {"id": key.id, "name": key.name, "revoked": key.revoked_at}


def parse_expiry(text: str, now: datetime) -> datetime:
    """A span from now, or an ISO date and time in UTC. Raises InvalidRequest."""
    if span := SPAN.fullmatch(text):
        return now + timedelta(hours=int(span[1]) * HOURS[span[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"expiry {text[:40]!r}: write 12h, 30d, 8w, 2027-01-31 or 2027-01-31T12:00"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _row(key: ApiKey, now: datetime) -> Row:
    return {
        "id": key.id,
        "tenant": key.project.name if key.project else None,
        "organisation": key.organisation.name,
        "kind": key.kind,
        "role": key.role,
        "name": key.name,
        "last4": key.last4,
        "rpm": key.requests_per_minute,
        "tpm": key.tokens_per_minute,
        "created": key.created_at,
        "expires": key.expires_at,
        "replaces": key.replaces,
        "only_for": ", ".join(key.endpoints or []) or None,
        "only_models": ", ".join(key.models or []) or None,
        "only_from": ", ".join(key.networks or []) or None,
        "state": _state(key, now),
    }


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "active"
