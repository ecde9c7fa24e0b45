"""``loratorio credit``: money that an organisation has paid in advance."""

import argparse
import re
from collections.abc import Sequence
from decimal import Decimal

from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.keys import parse_expiry
from gateway.cli.table import Row
from gateway.errors import InvalidRequest
from gateway.identity.service import DEFAULT_ORGANISATION, IdentityService
from gateway.limits.models import Credit
from gateway.limits.repository import LimitRepository
from gateway.limits.service import LimitService
from gateway.usage.pricing import dollars

PREPAID = "prepaid"
AMOUNT = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?", re.ASCII)


def add(group: Commands) -> None:
    given = add_command(group, "grant", grant, help="add credit: from then on it pays by credit")
    given.add_argument("amount", metavar="USD", help="dollars, at most 9 decimal places")
    given.add_argument("--organisation", default=DEFAULT_ORGANISATION, metavar="ORG")
    given.add_argument("--expires", metavar="WHEN", help="12h, 30d, 8w, or a date and time in UTC")
    given.add_argument("--note", default="", help="for example a receipt's number")
    listed = add_command(group, "list", list_all, help="list an organisation's credits")
    listed.add_argument("--organisation", default=DEFAULT_ORGANISATION, metavar="ORG")


async def grant(desk: Desk, arguments: argparse.Namespace) -> Row:
    nano = nano_dollars(arguments.amount)
    until = parse_expiry(arguments.expires, desk.now) if arguments.expires else None
    async with desk.database.publish() as session:
        owner = await IdentityService(session, desk.now).organisation(arguments.organisation)
        owner.billing = PREPAID
        service = LimitService(session, owner.id, desk.now)
        row = service.grant(nano, note=arguments.note, expires_at=until)
        change = {"amount_nano": nano, "expires_at": until and until.isoformat()}
        await desk.note(session, owner.id, "credit.granted", row.id, change=change)
        return _row(row)


async def list_all(desk: Desk, arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        owner = await IdentityService(session, desk.now).organisation(arguments.organisation)
        return [_row(row) for row in await LimitRepository(session, owner.id).credits()]


def nano_dollars(text: str) -> int:
    """Exactly. Raises InvalidRequest."""
    amount = Decimal(text) if AMOUNT.fullmatch(text) else Decimal(0)
    if amount <= 0:
        raise InvalidRequest(
            f"amount {text[:40]!r}: dollars above 0, at most 9 decimal places", param="amount"
        )
    return int(amount * 10**9)


def _row(row: Credit) -> Row:
    return {
        "id": row.id,
        "amount_usd": dollars(row.amount_nano),
        "granted": row.granted_at,
        "expires": row.expires_at,
        "lapsed_usd": None if row.lapsed_nano is None else dollars(row.lapsed_nano),
        "note": row.note,
    }
