"""Fills a database with tenants and their roll-ups, inside the database itself."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Table, insert, text
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.db import Database
from gateway.identity.logins import LoginService
from gateway.identity.models import User
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.passwords import Passwords
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.ids import new_id
from gateway.limits.models import Level
from gateway.limits.rules import Rates, Subject
from gateway.limits.service import LimitService
from gateway.refusals.keeper import MOST_ROWS
from gateway.refusals.models import Refusal
from gateway.usage.event import Event, month_of, slot_of
from gateway.usage.models import UsageDay, UsagePace, UsageRollup
from gateway.usage.repository import LedgerRepository
from gateway.usage.rollup_repository import DAY_KEYS, GRAINS, SUMS, WEEKLY

DAYS = 90
EVENTS = 20_000  # of one tenant, over two weeks
SLOTS = DAYS * 96
MODELS, KEYS, CUSTOMERS = 8, 4, 50
TABLES: tuple[Table, ...] = tuple(
    UsageRollup.metadata.tables[each.__tablename__] for each in (UsageRollup, UsageDay, UsagePace)
)
PASSWORD = "as long as it is wide"

# Rows come in the order of their slots, as they do in life, and evenly over all the days; tenants,
# models, keys and customers go round at their own pace.
ROLLUPS = """
INSERT INTO usage_rollup (slot, project_id, period, key_id, user_id, tier, model, base_model,
  adapter_id, endpoint, price_id, organisation_id, events, requests, unpriced, prompt_tokens,
  cached_tokens, completion_tokens, storage_byte_hours, input_nano, cached_nano, output_nano,
  storage_nano)
SELECT {slot}, p.project_id, {period}, p.key_id,
  'customer-' || ((n / {places} * 7 + n) % {customers}), 'default',
  'model-' || ((n / {places} + n) % {models}), 'base', '', 'chat.completions', 'prc_1',
  p.organisation_id,
  5, 5, 0, 4000, 800, 900, 0, 8000000, 200000, 9000000, 0
FROM {series} JOIN bench_place p ON p.place = n % {places}
"""
DAYS_OF = """
INSERT INTO usage_day (grain, day, {keys}, organisation_id, {sums})
SELECT '{grain}', {day}, {values}, {owner}, {added} FROM usage_rollup GROUP BY {by}
"""
PACE_DAYS = """
INSERT INTO usage_pace_day (day, kind, step, requests)
SELECT {day}, kind, step, sum(requests) FROM usage_pace GROUP BY 1, 2, 3
"""
PACES = """
INSERT INTO usage_pace (slot, project_id, model, kind, step, organisation_id, requests)
SELECT slot, project_id, model, k.kind, k.step, organisation_id, sum(requests)
FROM usage_rollup CROSS JOIN (SELECT 'completed' AS kind, 0 AS step UNION ALL SELECT 'first', 140
  UNION ALL SELECT 'token', 118) k
WHERE user_id < 'customer-15' -- one row in seven: paces know no customers and no keys
GROUP BY slot, project_id, model, k.kind, k.step, organisation_id
"""


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    tenants: int


async def fill(database: Database, size: Size, peppers: Peppers) -> dict[str, str]:
    """Returns who signs in, and the password of both."""
    now = datetime.now(UTC)
    hashed = await Passwords().hash(PASSWORD)
    places: list[dict[str, object]] = []
    async with database.publish() as session:
        service = IdentityService(session, now)
        for number in range(size.tenants):
            project = await service.create_project("web", f"tenant-{number}")
            key_ids = [
                service.issue(project, KeyTerms(name=f"key-{k}"), peppers=peppers).id
                for k in range(KEYS)
            ]
            places += [
                {"place": number + k * size.tenants, "o": project.organisation_id,
                 "p": project.id, "k": key}
                for k, key in enumerate(key_ids)
            ]  # fmt: skip
        await session.flush()
        owner = str(places[0]["o"])
        user = User(id=new_id("user"), organisation_id=owner, email="owner@bench", name="Owner",
                    role="owner", created_at=now, removed_at=None)  # fmt: skip
        OrganisationRepository(session, owner).add(user)
        await session.flush()
        logins = LoginService(session, now)
        await logins.make(user, hashed)
        await logins.make_operator("operator@bench", hashed)
        limits = LimitService(session, owner, now)
        subject = Subject(Level.ORGANISATION, owner)
        await limits.set_rates(subject, Rates(requests_per_minute=600))
        await limits.set_budget(subject, "month", 10**13)
    await _roll(database, size, places, now)
    await _request(database, places[0], now)
    await _refuse(database, places[0], now)
    return {"owner": "owner@bench", "operator": "operator@bench", "password": PASSWORD}


async def _roll(
    database: Database, size: Size, places: list[dict[str, object]], now: datetime
) -> None:
    first = (now - timedelta(days=DAYS)).replace(minute=0, second=0, microsecond=0)
    engine = create_async_engine(database.engine.url)  # without our time-outs
    postgres = engine.dialect.name == "postgresql"
    async with engine.begin() as session:
        await session.run_sync(_without_indexes)
        await session.execute(
            text("CREATE TABLE bench_place (place INTEGER PRIMARY KEY, organisation_id TEXT,"
                 " project_id TEXT, key_id TEXT)")
        )  # fmt: skip
        await session.execute(text("INSERT INTO bench_place VALUES (:place, :o, :p, :k)"), places)
        minutes = f"15 * (n::bigint * {SLOTS} / {size.rows})" if postgres else (
            f"15 * (n * {SLOTS} / {size.rows})")  # fmt: skip
        start = f"{first:%Y-%m-%d %H:%M:%S}"
        shape = {
            "customers": CUSTOMERS, "models": MODELS, "places": len(places),
            "slot": f"timestamptz '{start}+00' + make_interval(mins => ({minutes})::int)"
            if postgres
            else f"strftime('%Y-%m-%d %H:%M:%S.000000', '{start}', ({minutes}) || ' minutes')",
            "period": f"date '{now:%Y-%m}-01'" if postgres else f"'{now:%Y-%m}-01'",
            "series": f"generate_series(0, {size.rows - 1}) n"
            if postgres
            else f"(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s"
                 f" WHERE n < {size.rows - 1}) SELECT n FROM s)",
        }  # fmt: skip
        await session.execute(text(ROLLUPS.format(**shape)))
        await session.execute(text(PACES))
        day = "date_trunc('day', slot, 'UTC')" if postgres else (
            "substr(slot, 1, 10) || ' 00:00:00.000000'")  # fmt: skip
        week = "to_timestamp(floor(extract(epoch FROM slot) / 604800) * 604800)" if postgres else (
            "strftime('%Y-%m-%d', strftime('%s', slot) / 604800 * 604800, 'unixepoch')"
            " || ' 00:00:00.000000'")  # fmt: skip
        for grain, told in GRAINS.items():
            first_moment = week if grain == WEEKLY else day
            filled = DAYS_OF.format(
                grain=grain, day=first_moment, keys=", ".join(DAY_KEYS), sums=", ".join(SUMS),
                values=", ".join(name if name in told else "''" for name in DAY_KEYS),
                owner="max(organisation_id)" if "project_id" in told else "'*'",
                added=", ".join(f"sum({name})" for name in SUMS),
                by=", ".join([first_moment, *told]),
            )  # fmt: skip
            await session.execute(text(filled))
        await session.execute(text(PACE_DAYS.format(day=day)))
        await session.execute(text("DROP TABLE bench_place"))
        await session.run_sync(_with_indexes)
        await session.execute(text("ANALYZE"))
    await engine.dispose()


def _without_indexes(connection: Connection) -> None:
    """Postgres sorts millions of keys at the end far sooner than it enters them one by one."""
    if connection.dialect.name != "postgresql":
        return
    for setting in ("maintenance_work_mem = '1GB'", "work_mem = '512MB'", "jit = off"):
        connection.execute(text(f"SET LOCAL {setting}"))
    for table in TABLES:
        connection.execute(text(f"ALTER TABLE {table.name} DROP CONSTRAINT pk_{table.name}"))
        connection.execute(text(f"ALTER TABLE {table.name} SET UNLOGGED"))
        for index in table.indexes:
            index.drop(connection)


def _with_indexes(connection: Connection) -> None:
    if connection.dialect.name != "postgresql":
        return
    for table in TABLES:
        keys = ", ".join(column.name for column in table.primary_key.columns)
        connection.execute(
            text(f"ALTER TABLE {table.name} ADD CONSTRAINT pk_{table.name} PRIMARY KEY ({keys})")
        )
        for index in table.indexes:
            index.create(connection)


async def _request(database: Database, place: dict[str, object], now: datetime) -> None:
    """Single requests of one tenant, for their log; they are in no sum."""
    events = [_event(place, now - timedelta(minutes=number), number) for number in range(EVENTS)]
    async with database.unit_of_work() as session:
        rows = LedgerRepository(session)
        for day in sorted({each.day for each in events}):
            await rows.ensure_partition(day)
    async with database.unit_of_work() as session:
        await LedgerRepository(session).add_events(events, "log_bench", 1)


async def _refuse(database: Database, place: dict[str, object], now: datetime) -> None:
    """As many refusals as a project keeps, of the same tenant."""
    rows = [
        {"id": f"refusal_{number:032x}", "organisation_id": place["o"], "project_id": place["p"],
         "key_id": place["k"], "status": 429 if number % 4 else 404, "code": "rate_limit_exceeded",
         "param": "", "model": f"model-{number % MODELS}", "endpoint": "chat.completions",
         "level": "key" if number % 4 else "", "subject": place["k"] if number % 4 else "",
         "limited": "requests per minute" if number % 4 else "", "times": 60,
         "first_at": now - timedelta(minutes=number), "last_at": now - timedelta(minutes=number),
         "wait_ms": 1000, "request_id": f"req_{number:032x}"}
        for number in range(MOST_ROWS)
    ]  # fmt: skip
    async with database.unit_of_work() as session:
        await session.execute(insert(Refusal), rows)


def _event(place: dict[str, object], at: datetime, number: int) -> Event:
    return Event(
        id=f"req_{number:032x}", day=at.date(), slot=slot_of(int(at.timestamp()) * 10**9),
        period=month_of(at.date()), organisation_id=str(place["o"]), project_id=str(place["p"]),
        key_id=str(place["k"]), user_id=f"customer-{number % CUSTOMERS}",
        model=f"model-{number % MODELS}", base_model="base", adapter_id=None, digest=None,
        endpoint="chat.completions", outcome="completed", finish_reason="stop",
        prompt_tokens=800, cached_tokens=160, completion_tokens=180, price_id="prc_1",
        cost_nano=3_440_000, input_nano=1_600_000, cached_nano=40_000, output_nano=1_800_000,
        started_at=at, finished_at=at + timedelta(seconds=4), first_ns=200_000_000,
    )  # fmt: skip
