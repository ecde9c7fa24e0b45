"""``loratorio export|sink``: what those who bill get, as files and as deliveries."""

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from gateway.billing.export import Export, Wanted
from gateway.billing.focus_file import FORMATS
from gateway.billing.sink_repository import SinkRepository
from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.progress import StepBar
from gateway.cli.table import Row
from gateway.errors import InvalidRequest
from gateway.identity.service import IdentityService

ISSUER = "Loratorio"


def add(group: Commands) -> None:
    made = add_command(
        group, "export", export, help="write a month's charges as FOCUS 1.2, with a manifest"
    )
    made.add_argument("--period", required=True, metavar="YYYY-MM")
    made.add_argument("--format", choices=list(FORMATS), default="focus-csv")
    made.add_argument("--output", type=Path, default=Path("."), metavar="DIR", help="default: here")
    made.add_argument("--organisation", metavar="ORG", help="of one alone (default: all)")
    made.add_argument(
        "--issuer", default=ISSUER, metavar="NAME",
        help="who provides the service and sends the invoices (default: %(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--leave-out-unpriced", action="store_true", help="requests without a price are no error"
    )


def add_sinks(group: Commands) -> None:
    add_command(group, "list", list_sinks, help="what was delivered to each billing system")
    named = add_command(group, "customer", name_customer, help="say what it calls an organisation")
    named.add_argument("sink", metavar="SINK", help="its name in the file of sinks")
    named.add_argument("organisation", metavar="ORG")
    named.add_argument("customer", metavar="ID", help="for example cus_…, Stripe's")


async def list_sinks(desk: Desk, _arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        return [
            {
                "sink": sink,
                "meter": meter,
                "state": state,
                "deliveries": deliveries,
                "quantity": quantity,
                "oldest": oldest,
                "said_last": detail,
            }
            for sink, meter, state, deliveries, quantity, oldest, detail in await SinkRepository(
                session
            ).summary()
        ]


async def name_customer(desk: Desk, arguments: argparse.Namespace) -> Row:
    """What was held for want of it is sent within a minute. It cannot be changed."""
    customer = arguments.customer
    if not 0 < len(customer) <= 128 or not customer.isprintable():
        raise InvalidRequest("customer: 1 to 128 printable characters", param="customer")
    async with desk.database.unit_of_work() as session:
        owner = await IdentityService(session, desk.now).organisation(arguments.organisation)
        SinkRepository(session).name(arguments.sink, owner.id, customer, desk.now)
        change = {"sink": arguments.sink, "customer": customer}
        await desk.note(session, owner.id, "sink.customer_named", owner.id, change=change)
    return {"sink": arguments.sink, "organisation": owner.id, "customer": customer}


async def export(desk: Desk, arguments: argparse.Namespace) -> Row:
    organisation = None
    if arguments.organisation is not None:
        async with desk.database.reading() as session:
            service = IdentityService(session, desk.now)
            organisation = (await service.organisation(arguments.organisation)).id
    period = month(arguments.period)
    if period > desk.now.date():
        raise InvalidRequest(f"{arguments.period} has not begun", param="period")
    wanted = Wanted(
        period=period,
        format=arguments.format,
        folder=arguments.output,
        issuer=arguments.issuer,
        organisation=organisation,
        leave_out_unpriced=arguments.leave_out_unpriced,
    )
    bar = StepBar(sys.stderr, "days")
    try:
        manifest = await Export(desk.database, desk.now).write(wanted, bar.show)
    finally:
        bar.close()
    return {
        "file": str(arguments.output / manifest.file),
        "rows": manifest.rows,
        "billed_usd": manifest.billed_cost,
        "closed": manifest.closed,
        "unpriced": manifest.unpriced_requests,
        "sha256": manifest.sha256,
    }


def month(text: str) -> date:
    """The first day of a month like 2026-11. Raises InvalidRequest."""
    try:
        if len(text) != len("2026-11"):
            raise ValueError(text)
        return date.fromisoformat(f"{text}-01")
    except ValueError as error:
        raise InvalidRequest(f"{text[:40]!r} is no month like 2026-11", param="period") from error
