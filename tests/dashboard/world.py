"""A small fleet's worth of tenants, people and usage, the same in every run but for the date."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.db import Database
from gateway.identity.logins import LoginService
from gateway.identity.models import Role, User
from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.passwords import Passwords
from gateway.identity.service import IdentityService, KeyTerms
from gateway.ids import new_id
from gateway.limits.models import Level, SpendAlert
from gateway.limits.rules import Rates, Subject
from gateway.limits.service import LimitService
from gateway.usage.event import Event, month_of, slot_of
from gateway.usage.log import Position
from gateway.usage.pace import FIRST, TOKEN, Place, step_of
from gateway.usage.pace_repository import PaceRepository
from gateway.usage.repository import LedgerRepository
from gateway.usage.rollups import Rollups
from tests.gateway.administrators import PEPPERS

BASE = "smollm2-135m"
PASSWORD = "correct horse battery"
OPERATOR = "operator"
PEOPLE = {role: f"{role}@acme.example" for role in map(str, Role)}
DAYS = 45
DOLLAR = 10**9
MODELS = (
    BASE,
    "support",
    "summaries",
    "sql",
    "legal-de",
    "translate",
    "triage",
    "tickets",
    "notes",
)
PICO = (2_500_000, 250_000, 10_000_000)  # per token: uncached, cached, output


@dataclass
class World:
    """What tests ask for by name."""

    database: Database
    organisations: dict[str, str] = field(default_factory=dict)
    projects: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    paces: Counter[Place] = field(default_factory=Counter)

    def email(self, who: str) -> str:
        return "root@gateway.example" if who == OPERATOR else PEOPLE[who]

    def events_of(self, organisation: str) -> list[Event]:
        return [e for e in self.events if e.organisation_id == self.organisations[organisation]]


def exact_usd(nano: int) -> str:
    """As pages say it where every digit counts."""
    return f"${nano / 10**9:,.9f}".rstrip("0").rstrip(".")


async def made(database: Database) -> World:
    world, now = World(database), datetime.now(UTC)
    hashed = await Passwords().hash(PASSWORD)
    async with database.publish() as session:
        service = IdentityService(session, now)
        for owner, names in {
            "acme": ("web", "batch", "labs"),
            "globex": ("app",),
            "initech": ("reports", "mail"),
        }.items():
            for name in names:
                project = await service.create_project(name, owner)
                world.projects[f"{owner}/{name}"] = project.id
                key = service.issue(project, KeyTerms(name=f"{name}-key"), peppers=PEPPERS)
                world.keys[f"{owner}/{name}"] = key.id
            world.organisations[owner] = project.organisation_id
        await session.flush()
        logins = LoginService(session, now)
        await logins.make_operator("root@gateway.example", hashed)
        acme = world.organisations["acme"]
        for role, email in PEOPLE.items():
            user = User(
                id=new_id("user"), organisation_id=acme, email=email, role=role,
                name=f"{role.capitalize()} Person", created_at=now, removed_at=None,
            )  # fmt: skip
            OrganisationRepository(session, acme).add(user)
            await session.flush()
            await logins.make(user, hashed)
            world.users[role] = user.id
        await _limit(session, world, now)
    world.events = list(_events(world, now))
    await written(database, world.events)
    await Rollups(database).roll_up()
    async with database.unit_of_work() as session:
        await PaceRepository(session).add(world.paces)
    return world


async def _limit(session: AsyncSession, world: World, now: datetime) -> None:
    acme = world.organisations["acme"]
    limits = LimitService(session, acme, now)
    web = world.projects["acme/web"]
    for level, subject, model, rates in (
        (Level.ORGANISATION, acme, "", Rates(requests_per_minute=600, tokens_per_day=2_000_000)),
        (Level.PROJECT, web, "", Rates(tokens_per_minute=120_000, concurrency=8)),
        (Level.PROJECT, web, "support", Rates(requests_per_minute=90)),
        (Level.KEY, world.keys["acme/web"], "", Rates(requests_per_minute=4)),
        (Level.CUSTOMER, f"{web}/ada", "", Rates(tokens_per_minute=9_000)),
    ):
        await limits.set_rates(Subject(level, subject, model), rates)
    for level, subject, period, nano in (
        (Level.ORGANISATION, acme, "month", 12 * DOLLAR),
        (Level.PROJECT, web, "month", 5 * DOLLAR),
        (Level.PROJECT, world.projects["acme/labs"], "day", DOLLAR // 2),
    ):
        await limits.set_budget(Subject(level, subject), period, nano)
    for name, project, nano in (("first", None, 2 * DOLLAR), ("last", web, 40 * DOLLAR)):
        row = SpendAlert(
            id=new_id("alert"), organisation_id=acme, project_id=project, threshold_nano=nano,
            recipients=f"{name}@acme.example", subject_prefix=None, created_at=now,
        )  # fmt: skip
        session.add(row)


async def written(database: Database, events: list[Event]) -> None:
    async with database.unit_of_work() as session:
        rows = LedgerRepository(session)
        for day in {each.day for each in events}:
            await rows.ensure_partition(day)
        await rows.add_events(events, "log_1", await rows.move("log_1", Position(1, 0)))


def _events(world: World, now: datetime) -> Iterator[Event]:
    """More by day than by night, fewer at weekends, growing; a few fail."""
    dice = random.Random(7)
    sizes = {"acme/web": 60, "acme/batch": 16, "acme/labs": 8, "globex/app": 22,
             "initech/reports": 9, "initech/mail": 3}  # fmt: skip
    number = 0
    for back in range(DAYS, -1, -1):
        day = (now - timedelta(days=back)).replace(hour=0, minute=0, second=0, microsecond=0)
        pace = (0.55 + 0.45 * (DAYS - back) / DAYS) * (0.45 if day.weekday() > 4 else 1.0)
        for place, size in sizes.items():
            for _ in range(round(size * pace * dice.uniform(0.7, 1.3))):
                at = day + timedelta(minutes=min(1439.0, max(0.0, dice.gauss(810, 230))))
                if at < now - timedelta(seconds=5):
                    number += 1
                    yield _event(world, place, at, dice, number)


def _event(world: World, place: str, at: datetime, dice: random.Random, number: int) -> Event:
    owner, _, _ = place.partition("/")
    weights = [12, 10, 7, 5, 4, 3, 2, 1, 1]
    model = dice.choices(MODELS, weights)[0] if owner == "acme" else BASE
    prompt = int(dice.lognormvariate(6.5, 0.9)) + 12
    cached = prompt // 64 * 64 if dice.random() < 0.35 else 0
    output = int(dice.lognormvariate(5.0, 0.8)) + 1
    failed = dice.random() < 0.012
    input_nano, cached_nano, output_nano = (
        tokens * pico // 1000
        for tokens, pico in zip((prompt - cached, cached, output), PICO, strict=True)
    )
    first_s, token_s = dice.lognormvariate(-2.0, 0.5), dice.lognormvariate(-3.7, 0.3)
    where = slot_of(int(at.timestamp()) * 10**9), world.projects[place], model
    for kind, step in (
        ("failed" if failed else "completed", 0),
        (FIRST, step_of(int(first_s * 1e9))),
        (TOKEN, step_of(int(token_s * 1e9))),
    ):
        world.paces[Place(*where, kind, step, world.organisations[owner])] += 1
    return Event(
        id=f"req_{number:032x}", day=at.date(), slot=slot_of(int(at.timestamp()) * 10**9),
        period=month_of(at.date()), organisation_id=world.organisations[owner],
        project_id=world.projects[place], key_id=world.keys[place], model=model, base_model=BASE,
        adapter_id=None if model == BASE else f"adp_{model}", digest=None,
        endpoint="chat.completions", outcome="failed" if failed else "completed",
        finish_reason=None if failed else "stop", prompt_tokens=prompt, cached_tokens=cached,
        completion_tokens=output, price_id="prc_1",
        cost_nano=input_nano + cached_nano + output_nano,
        input_nano=input_nano, cached_nano=cached_nano, output_nano=output_nano, started_at=at,
        finished_at=at + timedelta(seconds=first_s + token_s * output),
        first_ns=int(first_s * 1e9), token_ns=int(token_s * 1e9),
    )  # fmt: skip
