"""``loratorio usage|price|period|settle|reconcile``: what was used, what it costs, the proof."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import httpx2
import msgspec

from engine.address import AddressInvalid
from engine.client import EngineClient, EngineLost
from engine.protocol import Counts
from engine.tls import Credentials
from gateway.cli.billing import month
from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.progress import StepBar, Tally
from gateway.cli.scrape import page_of
from gateway.cli.table import Row
from gateway.counters import CounterCheck, Reading
from gateway.errors import Conflict, GatewayUnreachable, InvalidRequest, NoEngine
from gateway.identity.service import IdentityService
from gateway.limits.store import Purse
from gateway.snapshot import rules_now
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.models import ClosedPeriod, Price
from gateway.usage.pricing import DEFAULT_TIER, PICO_PER_DOLLAR_PER_MILLION, dollars
from gateway.usage.reconcile import MOST_TOLD, Reconciliation, merged
from gateway.usage.report import EVER, UsageReport
from gateway.usage.repository import LedgerRepository
from gateway.usage.repricing import Repricing
from gateway.usage.service import PriceList, close_period

NOBODY = ""  # whose audit log has what belongs to no organisation
COUNTERS_TIMEOUT_S = 10.0
EARLIEST_YEAR, LATEST_YEAR = 2000, 2200
RECORDED_PAGE = 5000  # requests asked of an engine at once


def add_usage(group: Commands) -> None:
    used = add_command(group, "usage", usage, help="what a tenant used, by model")
    used.add_argument("--tenant", required=True, metavar="NAME")
    add_command(group, "settle", settle, help="bring a stopped gateway's log into the database")
    proof = add_command(
        group, "reconcile", reconcile, help="prove that ledger, roll-ups and engines agree"
    )
    proof.add_argument(
        "--engine", action="append", default=[], metavar="ADDRESS", help="ask this engine too"
    )
    proof.add_argument(
        "--gateway", metavar="HOST:PORT",
        help="where its /metrics is: compare the counters of budgets (with --redis-url, Redis')",
    )  # fmt: skip


def add_periods(group: Commands) -> None:
    closed = add_command(group, "close", close, help="close a month: later events go to the next")
    closed.add_argument("period", metavar="YYYY-MM")
    add_command(group, "list", list_periods, help="list the closed months")


def add_prices(group: Commands) -> None:
    made = add_command(group, "set", set_price, help="price a base model or an adapter")
    made.add_argument("model", metavar="MODEL", help="its served name, or an adapter's id (adp_…)")
    for name in ("input", "cached-input", "output"):
        made.add_argument(
            f"--{name}", required=True, metavar="USD", help="dollars per million tokens"
        )
    made.add_argument("--storage", default="0", metavar="USD", help="dollars per GiB and hour")
    made.add_argument("--tier", default=DEFAULT_TIER, help="of service (default: %(default)s)")
    made.add_argument("--from", dest="since", type=moment, metavar="TIME", help="default: now")
    add_command(group, "list", list_prices, help="list the prices, oldest first")
    again = add_command(group, "reprice", reprice, help="adjust what was charged by wrong prices")
    again.add_argument("--from", dest="since", type=moment, required=True, metavar="TIME")
    again.add_argument("--to", type=moment, metavar="TIME", help="default: now")


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
    records = 0
    for folder in desk.files.usage_logs():
        usage_log = UsageLog(folder)
        lock = usage_log.lock()
        if lock is None:
            raise Conflict("a gateway is running and settles its own log, twice a second")
        try:
            records += await Ledger(usage_log, desk.database).settle()
        finally:
            lock.release()
    return {"records": records}


async def set_price(desk: Desk, arguments: argparse.Namespace) -> Row:
    prices = (arguments.input, arguments.cached_input, arguments.output)
    async with desk.database.publish() as session:  # what runs is admitted by it
        price = PriceList(session, desk.now).set(
            arguments.model,
            prices,
            adapter_id=arguments.model if arguments.model.startswith("adp_") else None,
            tier=arguments.tier,
            storage=arguments.storage,
            effective_from=arguments.since,
        )
        change = {"subject": arguments.model, "tier": price.tier}
        await desk.note(session, NOBODY, "price.created", price.id, change=change)
        await session.flush()
        rows = _price_rows(await LedgerRepository(session).prices())
        return next(row for row in rows if row["id"] == price.id)


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
    return {"adjustments": done.adjustments, "cost_usd": dollars(done.cost_nano)}


async def close(desk: Desk, arguments: argparse.Namespace) -> Row:
    period = month(arguments.period)
    async with desk.database.unit_of_work() as session:
        row = await close_period(session, period, desk.now)
        change = {"events": row.events, "cost_nano": row.cost_nano}
        await desk.note(session, NOBODY, "period.closed", arguments.period, change=change)
        return _period(row)


async def list_periods(desk: Desk, _arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        return [_period(row) for row in await LedgerRepository(session).closed_periods()]


async def reconcile(desk: Desk, arguments: argparse.Namespace) -> Sequence[Row]:
    """Exits with 1 where the books differ."""
    pages: list[list[Counts]] = []
    for address in arguments.engine:
        pages += await record_of(address, desk.stores.credentials)
    bar = StepBar(sys.stderr, "steps")
    try:
        proof = Reconciliation(desk.database, now=desk.now.timestamp(), watch=bar.show)
        found = await proof.run(merged(pages) if arguments.engine else None)
    finally:
        bar.close()
    if (read := counters_of(desk, arguments.gateway)) is not None:
        async with desk.database.reading() as session:
            rules = await rules_now(session)
        await CounterCheck(desk.database, read, desk.now, rules=rules).add_to(found)
    desk.exit_code = 1 if found.differences else 0
    rows: list[Row] = [
        {"found": what, "place": "", "ledger": number, "other": number, "difference": 0}
        for what, number in found.compared.items()
    ]
    for reason, tokens in sorted(found.unbilled.items()):
        rows.append({"found": "tokens not billed", "place": reason, "ledger": 0, "other": tokens,
                     "difference": 0})  # fmt: skip
    for each in found.differences[:MOST_TOLD]:
        rows.append({"found": f"DIFFERENCE: {each.check}", "place": each.place,
                     "ledger": each.ledger, "other": each.other,
                     "difference": each.ledger - each.other})  # fmt: skip
    return rows


async def record_of(address: str, credentials: Credentials) -> list[list[Counts]]:
    """All that one engine keeps. Raises NoEngine."""
    pages: list[list[Counts]] = []
    try:
        client = await EngineClient.connect(address, gateway="reconcile", credentials=credentials)
        async with client:
            while page := await client.recorded(sum(map(len, pages)), RECORDED_PAGE):
                pages.append(page)
    except (EngineLost, AddressInvalid, TimeoutError) as error:
        raise NoEngine(f"{address} does not answer: {error}") from error
    return pages


def counters_of(desk: Desk, gateway: str | None) -> Reading | None:
    """Of budgets: where they are counted."""
    if gateway is not None:
        return lambda: asyncio.to_thread(counters_at, gateway)
    return desk.counters if desk.has_redis else None


def counters_at(address: str) -> list[Purse]:
    """Raises GatewayUnreachable."""
    try:
        answer = httpx2.get(page_of(address, "/counters"), timeout=COUNTERS_TIMEOUT_S)
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=list[Purse])
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.DecodeError) as error:
        raise GatewayUnreachable(f"--gateway {address}: no counters there ({error})") from error


def moment(text: str) -> datetime:
    """An ISO time; UTC unless it names its zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no time like 2026-11-30 or 2026-11-30T12:00"
        ) from error
    if not EARLIEST_YEAR <= found.year <= LATEST_YEAR:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not from {EARLIEST_YEAR} to {LATEST_YEAR}"
        )
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _period(row: ClosedPeriod) -> Row:
    return {
        "period": f"{row.period:%Y-%m}",
        "events": row.events,
        "cost_usd": dollars(row.cost_nano),
        "closed": row.closed_at,
    }


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
        "storage": dollars(price.storage_pico, places=12),
        "tier": price.tier,
        "from": price.effective_from,
        "until": until,
    }
