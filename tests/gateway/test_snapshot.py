"""Changes are seen within a second, also those made by another process."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from engine.protocol import AdapterRef
from gateway import redis
from gateway.catalog.service import CatalogService
from gateway.config import Secret
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import ModelNotFound, ResourceNotFound, Unauthenticated
from gateway.identity import keys
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.snapshot import LOOKS_APART_S, LiveSnapshot

PEPPERS = Peppers.parse("1:" + "11" * 32, "test")


class Operator:
    """Another process: its own connections to the same database."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)

    async def key(self, tenant: str, **terms) -> str:
        now = datetime.now(UTC)
        async with self.database.publish() as session:
            service = IdentityService(session, now)
            try:
                project = await service.project(tenant)
            except ResourceNotFound:
                project = await service.create_project(tenant)
            return service.issue(project, KeyTerms(**terms), peppers=PEPPERS).text

    async def adapter(self, tenant: str, name: str) -> None:
        now = datetime.now(UTC)
        async with self.database.publish() as session:
            project = await IdentityService(session, now).project(tenant)
            await CatalogService(session, project.id, now).publish(name, AdapterRef("d" * 64, 8))

    async def revoke(self, key: str) -> None:
        async with self.database.publish() as session:
            await IdentityService(session, datetime.now(UTC)).revoke(f"key_{key.split('-')[2]}")

    async def archive(self, tenant: str) -> None:
        async with self.database.publish() as session:
            await IdentityService(session, datetime.now(UTC)).archive(tenant)


@pytest.fixture
async def operator(database, migrated_url):
    operator = Operator(migrated_url)
    yield operator
    await operator.database.close()


@pytest.fixture
async def live(database):
    live = LiveSnapshot(database, PEPPERS, base_model="smol")
    await live.refresh()
    follower = asyncio.create_task(live.follow())
    yield live
    await stop(follower)


async def stop(*tasks: asyncio.Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def soon(check) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            check()
            return
        except (AssertionError, Unauthenticated, ModelNotFound):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.01)


def refused(live: LiveSnapshot, key: str):
    def check() -> None:
        try:
            principal = live.authenticate(key)
        except Unauthenticated:
            return
        raise AssertionError(f"still {principal}")

    return check


async def test_a_new_key_and_a_new_adapter_work_soon(live, operator):
    key = await operator.key("acme", requests_per_minute=5, tokens_per_minute=700)
    await soon(lambda: live.authenticate(key))
    principal = live.authenticate(key)
    assert (principal.project_name, principal.admin) == ("acme", False)
    assert (principal.requests_per_minute, principal.tokens_per_minute) == (5, 700)
    assert principal.tenant not in (principal.project, "acme")
    await operator.adapter("acme", "support")
    await soon(lambda: live.resolve(principal, "support"))
    assert [target.public_name for target in live.models(principal)] == ["smol", "support"]


async def test_a_new_key_works_at_once_whoever_made_it(database, operator):
    live = LiveSnapshot(database, PEPPERS, base_model="smol")
    await live.refresh()
    for _ in range(2):  # nobody polls here
        key = await operator.key("acme")
        with pytest.raises(Unauthenticated):
            live.authenticate(key)
        assert (await live.recognise(key)).project_name == "acme"


async def test_guessers_share_looks_at_the_database(database, operator):
    live = LiveSnapshot(database, PEPPERS, base_model="smol")
    await live.refresh()
    asked = 0

    async def counted() -> int:
        nonlocal asked
        asked += 1
        return await Database.epoch(database)

    database.epoch = counted
    begun = time.monotonic()
    guesses = [live.recognise(keys.generate("live").text) for _ in range(500)]
    refusals = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(refusal) for refusal in refusals} == {Unauthenticated}
    assert 1 <= asked <= 2 + (time.monotonic() - begun) / LOOKS_APART_S
    junk = [live.recognise(text) for text in ("", "sk-live-nonsense", "x" * 5000)]
    asked = 0
    await asyncio.gather(*junk, return_exceptions=True)
    assert asked == 0


async def test_a_key_that_nobody_knows_is_refused_while_the_database_is_away(database, operator):
    live = LiveSnapshot(database, PEPPERS, base_model="smol")
    known = await operator.key("acme")
    await live.refresh()

    async def away() -> int:
        raise DatabaseUnavailable("away")

    database.epoch = away
    with pytest.raises(Unauthenticated):
        await live.recognise(keys.generate("live").text)
    assert (await live.recognise(known)).project_name == "acme"


async def test_a_revoked_key_stops_soon(live, operator):
    key, other = await operator.key("acme"), await operator.key("acme")
    await soon(lambda: live.authenticate(other))
    await operator.revoke(key)
    await soon(refused(live, key))
    live.authenticate(other)


async def test_all_keys_and_names_of_an_archived_tenant_stop(live, operator):
    key, foreign = await operator.key("acme"), await operator.key("globex")
    await operator.adapter("acme", "support")
    await soon(lambda: live.resolve(live.authenticate(key), "support"))
    principal = live.authenticate(key)
    await operator.archive("acme")
    await soon(refused(live, key))
    with pytest.raises(ModelNotFound):
        live.resolve(principal, "support")
    live.authenticate(foreign)
    again = await operator.key("acme")  # the name is free for another tenant
    await soon(lambda: live.authenticate(again))
    assert live.authenticate(again).project != principal.project


async def test_a_key_expires_without_any_change(database, operator):
    now = time.time()
    live = LiveSnapshot(database, PEPPERS, base_model="smol", clock=lambda: now)
    key = await operator.key("acme", expires_at=datetime.now(UTC) + timedelta(hours=1))
    await live.refresh()
    live.authenticate(key)
    now += 3601
    refused(live, key)()


async def test_open_mode_answers_for_any_or_no_key_with_one_tenant(database, operator):
    live = LiveSnapshot(database, PEPPERS, base_model="smol", open_tenant="acme")
    await live.refresh()
    refused(live, "EMPTY")()  # before there is such a tenant
    await operator.key("globex")
    await operator.key("acme")
    other = await operator.key("globex")
    await live.refresh()
    for key in ("", "EMPTY", "sk-anything"):
        assert live.authenticate(key).project_name == "acme"
    assert live.authenticate(other).project_name == "globex"


async def test_an_unchanged_epoch_loads_nothing(live, operator):
    await operator.key("acme")
    await live.refresh()
    snapshot = live.current
    await live.refresh()
    assert live.current is snapshot


async def test_the_last_snapshot_stays_while_the_database_is_away(
    live, operator, database, monkeypatch, caplog
):
    key = await operator.key("acme")
    await soon(lambda: live.authenticate(key))
    away = Database("postgresql+asyncpg://x@127.0.0.1:1/x")
    monkeypatch.setattr(database, "_reader", away.engine)
    await asyncio.sleep(0.8)
    live.authenticate(key)
    assert live.age_s > 0.3
    assert caplog.text.count("as last known") == 1
    monkeypatch.undo()
    other = await operator.key("acme")
    await soon(lambda: live.authenticate(other))
    await away.close()


async def test_redis_makes_the_look_come_at_once(database, operator, redis_url):
    live = LiveSnapshot(database, PEPPERS, base_model="smol", poll_s=3600)
    await live.refresh()
    url = Secret(redis_url)
    listening, telling = redis.connect(url, timeout_s=0.2), redis.connect(url, timeout_s=2)
    tasks = [
        asyncio.create_task(live.follow()),
        asyncio.create_task(redis.listen(listening, live.hint)),
    ]
    while not (await telling.pubsub_numsub(redis.CHANNEL))[0][1]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)  # longer than the deadline of a reply: it still listens
    key = await operator.key("acme")
    await redis.announce(telling)
    await soon(lambda: live.authenticate(key))
    await stop(*tasks)
    await listening.aclose()
    await telling.aclose()
