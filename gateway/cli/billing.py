"""``loratorio export``: a month of the ledger as a file for those who bill."""

import argparse
import sys
from datetime import date
from pathlib import Path

from gateway.billing.export import Export, Wanted
from gateway.billing.focus_file import FORMATS
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


async def export(desk: Desk, arguments: argparse.Namespace) -> Row:
    organisation = None
    if arguments.organisation is not None:
        async with desk.database.reading() as session:
            service = IdentityService(session, desk.now)
            organisation = (await service.organisation(arguments.organisation)).id
    wanted = Wanted(
        period=month(arguments.period),
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
