"""``loratorio usage|price|settle``: what was used, what it costs, and bringing both up to date."""

import argparse
from collections.abc import Sequence

from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.table import Row
from gateway.errors import Conflict
from gateway.identity.service import IdentityService
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.models import Price
from gateway.usage.pricing import PICO_PER_DOLLAR_PER_MILLION, dollars
from gateway.usage.report import EVER, UsageReport
from gateway.usage.repository import LedgerRepository
from gateway.usage.service import PriceList


def add_usage(group: Commands) -> None:
    used = add_command(group, "usage", usage, help="what a tenant used, by model")
    used.add_argument("--tenant", required=True, metavar="NAME")
    add_command(group, "settle", settle, help="bring a stopped gateway's log into the database")


def add_prices(group: Commands) -> None:
    made = add_command(group, "set", set_price, help="price a base model from now on")
    made.add_argument("model", metavar="MODEL", help="its served name")
    for name in ("input", "cached-input", "output"):
        made.add_argument(
            f"--{name}", required=True, metavar="USD", help="dollars per million tokens"
        )
    add_command(group, "list", list_prices, help="list the prices, oldest first")


async def usage(desk: Desk, arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        project = await IdentityService(session, desk.now).project(arguments.tenant)
        report = UsageReport(session, project.organisation_id, project.id)
        lines = await report.lines(EVER, ("model",))
    return [
        {
            "model": line.group[0],
            "requests": line.usage.requests,
            "prompt_tokens": line.usage.prompt_tokens,
            "cached_tokens": line.usage.cached_tokens,
            "completion_tokens": line.usage.completion_tokens,
            "cost_usd": dollars(line.usage.cost.total),
            "unpriced": line.usage.unpriced,
        }
        for line in lines
    ]


async def settle(desk: Desk, _arguments: argparse.Namespace) -> Row:
    """What no Finished is there for is closed as failed: no engine is asked."""
    usage_log = UsageLog(desk.files.usage_log)
    lock = usage_log.lock()
    if lock is None:
        raise Conflict("a gateway is running and settles its own log, twice a second")
    try:
        return {"records": await Ledger(usage_log, desk.database).settle()}
    finally:
        lock.release()


async def set_price(desk: Desk, arguments: argparse.Namespace) -> Row:
    prices = (arguments.input, arguments.cached_input, arguments.output)
    async with desk.database.unit_of_work() as session:
        return _row(PriceList(session, desk.now).set(arguments.model, prices))


async def list_prices(desk: Desk, _arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        return [_row(price) for price in await LedgerRepository(session).prices()]


def _row(price: Price) -> Row:
    def per_million(pico: int) -> str:
        return dollars(pico * (10**9 // PICO_PER_DOLLAR_PER_MILLION))

    return {
        "id": price.id,
        "model": price.base_model or price.adapter_id,
        "input": per_million(price.input_pico),
        "cached_input": per_million(price.cached_input_pico),
        "output": per_million(price.output_pico),
        "from": price.effective_from,
    }
