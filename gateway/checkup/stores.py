"""Database, Redis and adapter store: reached, of the right kind, and on the same clock."""

import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

from redis.exceptions import RedisError

from adapters.errors import StoreUnusable
from adapters.stores import open_store
from gateway import redis
from gateway.checkup.checkup_repository import CheckupRepository
from gateway.checkup.finding import Finding, bad, good, warning
from gateway.config import DataDir, Secret
from gateway.db import Database, DatabaseUnavailable
from migrations import runner

REDIS_SECONDS = 3.0
APART_S, FAR_APART_S = 1.0, 30.0
SYNC = "run a time service (chrony, systemd-timesyncd) on every machine"


async def database(found: Database) -> AsyncIterator[Finding]:
    """It is asked, never migrated."""
    began = time.monotonic()
    try:
        async with found.reading() as session:
            rows = CheckupRepository(session)
            version = await rows.version()
            took = time.monotonic() - began
            yield good("database", f"{found.engine.dialect.name} {version}, {took * 1000:.0f} ms")
            yield _clocks("database", (await rows.clock()).timestamp() - time.time())
            yield _migrated(await rows.revision())
    except DatabaseUnavailable as error:
        yield bad("database", str(error), "start it, or correct --database-url")


def _migrated(revision: str | None) -> Finding:
    known = runner.revisions()
    if revision == known[-1]:
        return good("schema", f"at {revision}")
    if revision in known:
        return warning(
            "schema",
            f"at {revision}, {len(known) - known.index(revision) - 1} revisions behind",
            "`loratorio serve` migrates at its start; back the database up first",
        )
    return bad(
        "schema",
        f"at {revision}, which this version does not know",
        "run the version of Loratorio that made it, or a newer one",
    )


async def limits(url: Secret) -> AsyncIterator[Finding]:
    """Redis."""
    client = redis.connect(url, timeout_s=REDIS_SECONDS)
    try:
        began = time.monotonic()
        await client.ping()
        took = time.monotonic() - began
        info = await client.info()
        yield good("redis", f"{info.get('redis_version', '?')}, {took * 1000:.1f} ms")
        seconds, micros = await client.time()
        yield _clocks("redis", seconds + micros / 1e6 - time.time())
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy == "noeviction":
            yield good("redis eviction", policy)
        else:
            yield bad(
                "redis eviction",
                f"{policy}: counters of money may vanish",
                "CONFIG SET maxmemory-policy noeviction",
            )
        if info.get("role") == "slave":
            yield bad("redis role", "a replica: nothing can be written", "name the primary")
    except RedisError as error:
        yield bad(
            "redis",
            f"does not answer: {type(error).__name__}",
            "start it, or correct --redis-url; until then budgets admit nothing new",
        )
    finally:
        await client.aclose()


def adapters(place: str, files: DataDir) -> Iterator[Finding]:
    try:
        open_store(place, cache=files.adapter_cache)
    except (StoreUnusable, OSError) as error:
        yield bad("adapter store", str(error), "see that it is there and may be read and written")
    else:
        yield good("adapter store", place)
    if files.base_spec.is_file():
        yield good("base", f"known by {files.base_spec}")
    else:
        yield warning(
            "base",
            f"no {files.base_spec}: adapters cannot be uploaded",
            "start `loratorio serve` once, or run `loratorio prepare --model DIR`",
        )


def _clocks(what: str, ahead_s: float) -> Finding:
    said = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine"
    if abs(ahead_s) < APART_S:
        return good(f"{what} clock", "agrees with this machine's")
    if abs(ahead_s) < FAR_APART_S:
        return warning(f"{what} clock", said, SYNC)
    return bad(f"{what} clock", f"{said}: usage may be billed in the wrong month", SYNC)


def month_start(now: datetime) -> datetime:
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
