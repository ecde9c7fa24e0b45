"""One server and one Chromium for all pages. Tests run on the session's loop:
``pytestmark = ON_THE_SESSIONS_LOOP``."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import orjson
import pytest
import pytest_asyncio
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.stores import open_parts, open_store
from gateway.adapter_api.canary import Canary
from gateway.adapter_api.publisher import Publisher
from gateway.adapter_api.staging import Staging
from gateway.adapter_api.uploads import UploadDesk
from gateway.catalog.service import Quota
from gateway.dashboard.books import Books
from gateway.dashboard.site import Site
from gateway.dashboard.sources import Sources
from gateway.db import Database
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.health import Health
from gateway.identity.attempts import Attempts
from gateway.identity.logins import Logins
from gateway.identity.oidc_provider import Provider
from gateway.identity.oidc_settings import OidcSettings, read_oidc
from gateway.identity.passwords import Passwords
from gateway.limits.limiter import RateLimiter, memory_limiter
from gateway.listener import Listener
from gateway.refusals.keeper import RefusalKeeper
from gateway.refusals.tally import Tally
from gateway.rest import rest_application
from gateway.snapshot import LiveSnapshot
from gateway.spending import LedgerSpending
from gateway.usage.record import Started
from tests.dashboard.browser import Browser, chromium, opened
from tests.dashboard.world import BASE, PASSWORD, World, made
from tests.fakes.clock import FakeClock, until
from tests.fakes.engine import FakeEngine
from tests.fakes.oidc import CLIENT, SECRET, FakeProvider
from tests.gateway.adapter_world import BASED
from tests.gateway.administrators import PEPPERS
from tests.services import migrated_sqlite

__all__ = ["migrated_sqlite"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need a browser say so by their fixture."""
    here = [i for i in items if Path(__file__).parent in i.path.parents]
    for item in here:
        if chromium() is None and "browser" in getattr(item, "fixturenames", ()):
            reason = "no Chromium: apt-get install chromium, or name one in CHROMIUM"
            item.add_marker(pytest.mark.skip(reason=reason))


def oidc_settings(file: Path, issuer: str, url: str) -> OidcSettings:
    """As an operator writes them."""
    organisation = [
        {"value": f"acme-{name}s", "organisation": "acme", "role": name}
        for name in ("developer", "viewer")
    ]
    billing = {"value": "acme-billing", "organisation": "acme", "role": "billing"}
    roles = [{"value": "operators", "operator": True}, *organisation, billing]
    file.write_bytes(orjson.dumps({
        "issuer": issuer, "client_id": CLIENT, "client_secret": SECRET, "url": url,
        "name": "Example", "roles": roles,
    }))  # fmt: skip
    return read_oidc(file)


def publishing(database: Database, fleet: Fleet, root: Path) -> Publisher:
    """For adapters of a tiny base; none is tried on an engine."""
    parts = open_parts(root / "store", local=root / "uploads")
    store = open_store(root / "store", cache=root / "cache")
    staging = Staging(root / "uploads", parts, 32 << 20)
    canary = Canary(fleet, (), enabled=False)
    bases = {BASE: BASED}
    return Publisher(database, staging, store, bases, canary, quota=Quota(20, 64 << 20))


class NoLog:
    """All usage is in the database."""

    orphans: Sequence[Started] = ()

    async def settle(self) -> int:
        return 0


@dataclass
class Served:
    """A running dashboard. ``cookie`` signs somebody in without the page for it."""

    url: str
    world: World
    logins: Logins
    attempts: Attempts
    snapshot: LiveSnapshot
    limiter: RateLimiter
    provider: FakeProvider
    provider_clock: FakeClock
    refusals: RefusalKeeper
    cookies: dict[str, str] = field(default_factory=dict)

    async def cookie(self, who: str) -> str:
        if who not in self.cookies:
            self.cookies[who] = await self.logins.sign_in(
                self.world.email(who), PASSWORD, address="127.0.0.1", browser="test"
            )
        return self.cookies[who]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served(
    migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    file = tmp_path_factory.mktemp("dashboard") / "world.db"
    shutil.copy(migrated_sqlite, file)
    known: list[LiveSnapshot] = []

    async def published() -> None:
        for each in known:
            await each.look()

    database = Database(f"sqlite+aiosqlite:///{file}", notify=published)
    world = await made(database)
    snapshot = LiveSnapshot(database, PEPPERS, base_model=BASE)
    known.append(snapshot)
    await snapshot.refresh()
    engine = FakeEngine(f"unix:{file.parent}/e.sock")
    await engine.__aenter__()
    fleet = Fleet(Static((engine.address,)), gateway="test")
    driving = asyncio.create_task(fleet.run())
    health = Health(fleet, lambda: snapshot.age_s)
    spending = LedgerSpending(database, NoLog())
    limiter = memory_limiter(rules=snapshot.rules, spending=spending)
    sources = Sources(
        snapshot=snapshot, limiter=limiter, fleet=fleet, health=health,
        peppers=PEPPERS, base_model=BASE, books=Books(database, fleet, limiter, settled_s=0.0),
        uploads=True,
    )  # fmt: skip
    attempts = Attempts()
    logins = Logins(database, Passwords(), attempts)
    made_later: list[ASGIApp] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await made_later[0](scope, receive, send)

    listener = Listener(application, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.port}"
    fake, clock = FakeProvider(), FakeClock()
    beside = Listener(fake.application(), "127.0.0.1", 0)
    fake.issuer = f"http://127.0.0.1:{beside.port}"
    provider = Provider(oidc_settings(file.parent / "oidc.json", fake.issuer, url), clock=clock)
    publisher = publishing(database, fleet, file.parent)
    site = Site(database, logins, sources, provider=provider, uploads=UploadDesk(publisher))
    rest = rest_application(health, base_model=BASE, is_open=False, dashboard=site.application())
    made_later.append(rest)
    running = [asyncio.create_task(each.run_until_stopped()) for each in (listener, beside)]
    await until(lambda: listener.started and beside.started and len(fleet.ready) == 1)
    refusals = RefusalKeeper(database, Tally())
    yield Served(url, world, logins, attempts, snapshot, limiter, fake, clock, refusals)
    for task in (*running, driving):
        task.cancel()
    await asyncio.wait([*running, driving])
    await engine.__aexit__(None, None, None)
    for each in (listener, beside):
        for server in each.servers:
            server.close()
        for connection in list(each.server_state.connections):
            connection.transport.abort()
    await limiter.close()
    await database.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(served: Served) -> AsyncIterator[Browser]:
    shots = os.environ.get("SCREENSHOTS")
    async with opened(served, Path(shots) if shots else None) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def http(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    """Without a browser, and nobody yet."""
    async with httpx2.AsyncClient(base_url=f"{served.url}/dashboard") as client:
        yield client
