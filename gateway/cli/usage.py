"""``loratorio usage|period|settle|reconcile``: what was used, closed months, the proof."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

import httpx2
import msgspec

from engine.address import AddressInvalid
from engine.client import EngineClient
from engine.protocol import Counts
from engine.stream import EngineLost
from engine.tls import Credentials
from gateway.cli.billing import month
from gateway.cli.desk import NOBODY, Commands, Desk, add_command
from gateway.cli.progress import StepBar
from gateway.cli.scrape import page_of
from gateway.cli.table import Row
from gateway.counters import CounterCheck, Reading
from gateway.errors import Conflict, GatewayUnreachable, NoEngine
from gateway.identity.service import IdentityService
from gateway.limits.store import Purse
from gateway.snapshot import rules_now
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.models import ClosedPeriod
from gateway.usage.pricing import dollars
from gateway.usage.reconcile import MOST_TOLD, Reconciliation, merged
from gateway.usage.report import EVER, UsageReport
from gateway.usage.repository import LedgerRepository
from gateway.usage.service import close_period

COUNTERS_TIMEOUT_S = 10.0
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


def _period(row: ClosedPeriod) -> Row:
    return {
        "period": f"{row.period:%Y-%m}",
        "events": row.events,
        "cost_usd": dollars(row.cost_nano),
        "closed": row.closed_at,
    }
