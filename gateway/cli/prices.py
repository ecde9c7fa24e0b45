"""``loratorio price``: what models and adapters cost, and the correction of what was charged."""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime

from gateway.cli.desk import NOBODY, Commands, Desk, add_command
from gateway.cli.moment import moment
from gateway.cli.progress import Tally
from gateway.cli.table import Row
from gateway.errors import InvalidRequest
from gateway.usage.models import Price
from gateway.usage.pricing import DEFAULT_TIER, PICO_PER_DOLLAR_PER_MILLION, dollars
from gateway.usage.repository import LedgerRepository
from gateway.usage.repricing import Repricing
from gateway.usage.service import PriceList


def add(group: Commands) -> None:
    made = add_command(group, "set", set_price, help="price a base model or an adapter")
    made.add_argument("model", metavar="MODEL", help="its served name, or an adapter's id (adp_…)")
    for name in ("input", "cached-input", "output"):
        made.add_argument(
            f"--{name}", required=True, metavar="USD", help="dollars per million tokens"
        )
    made.add_argument("--tier", default=DEFAULT_TIER, help="of service (default: %(default)s)")
    made.add_argument("--from", dest="since", type=moment, metavar="TIME", help="default: now")
    add_command(group, "list", list_prices, help="list the prices, oldest first")
    again = add_command(group, "reprice", reprice, help="adjust what was charged by wrong prices")
    again.add_argument("--from", dest="since", type=moment, required=True, metavar="TIME")
    again.add_argument("--to", type=moment, metavar="TIME", help="default: now")


async def set_price(desk: Desk, arguments: argparse.Namespace) -> Row:
    prices = (arguments.input, arguments.cached_input, arguments.output)
    async with desk.database.publish() as session:  # what runs is admitted by it
        price = PriceList(session, desk.now).set(
            arguments.model,
            prices,
            adapter_id=arguments.model if arguments.model.startswith("adp_") else None,
            tier=arguments.tier,
            effective_from=arguments.since,
        )
        change = {"subject": arguments.model, "tier": price.tier}
        await desk.note(session, NOBODY, "price.created", price.id, change=change)
        await session.flush()
        rows = _price_rows(await LedgerRepository(session).prices())
        made = next(row for row in rows if row["id"] == price.id)
    until = made["until"]
    ends = until if isinstance(until, datetime) else None
    for note in _limits(price.effective_from, ends, desk.now):
        print(f"note: {note}", file=sys.stderr)
    return made


def _limits(since: datetime, until: datetime | None, now: datetime) -> list[str]:
    """What a price that was just set does not do, though one might think so."""
    notes = []
    if until is not None:
        notes.append(f"holds only until {until.isoformat()}, when another price that was set"
                     f" before takes over; set it with --from {until.isoformat()} as well to"
                     " replace that one too")  # fmt: skip
    if since < now:
        notes.append("what was charged already stays so until"
                     f" `loratorio price reprice --from {since.isoformat()}`")  # fmt: skip
    return notes


async def reprice(desk: Desk, arguments: argparse.Namespace) -> Row:
    end = arguments.to or desk.now
    if arguments.since >= end:
        raise InvalidRequest(f"--from {arguments.since.isoformat()} is not before --to,"
                             f" {end.isoformat()}", param="from")  # fmt: skip
    tally = Tally(sys.stderr, "requests seen")
    try:
        done = await Repricing(desk.database, desk.now).run(arguments.since, end, tally.show)
    finally:
        tally.close()
    async with desk.database.unit_of_work() as session:
        change = {"from": arguments.since.isoformat(), "to": end.isoformat(),
                  "adjustments": done.adjustments, "cost_nano": done.cost_nano}  # fmt: skip
        await desk.note(session, NOBODY, "price.repriced", "price", change=change)
    if not done.adjustments:
        print("note: no request was charged by another price than the one that holds for the time"
              " at which it began; `loratorio price list` shows from when until when each one does",
              file=sys.stderr)  # fmt: skip
    return {"adjustments": done.adjustments, "cost_usd": dollars(done.cost_nano)}


async def list_prices(desk: Desk, _arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        return _price_rows(await LedgerRepository(session).prices())


def _price_rows(prices: Sequence[Price]) -> list[Row]:
    """Each holds until the next of the same model and tier, if there is one: one from the same
    time as a later made one never does."""
    ends: dict[tuple[str | None, str], datetime] = {}
    rows = []
    for price in sorted(prices, key=lambda each: (each.effective_from, each.id), reverse=True):
        subject = price.base_model or price.adapter_id, price.tier
        rows.append(_row(price, ends.get(subject)))
        ends[subject] = price.effective_from
    return rows[::-1]


def _row(price: Price, until: datetime | None) -> Row:
    def per_million(pico: int) -> str:
        return dollars(pico * (10**9 // PICO_PER_DOLLAR_PER_MILLION))

    return {
        "id": price.id,
        "model": price.base_model or price.adapter_id,
        "input": per_million(price.input_pico),
        "cached_input": per_million(price.cached_input_pico),
        "output": per_million(price.output_pico),
        "tier": price.tier,
        "from": price.effective_from,
        "until": until,
    }
