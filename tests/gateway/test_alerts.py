"""Spend alerts: told once for each threshold and month, signed, and again until they are taken."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2
import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from gateway.alerts.message import load_secret
from gateway.alerts.outbox import Outbox, wait_after
from gateway.alerts.watch import SpendWatch
from gateway.config import ConfigError, Secret, Settings
from gateway.identity.service import IdentityService
from gateway.ids import new_id
from gateway.limits.models import SpendAlert
from gateway.limits.repository import LimitRepository
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.models import Price
from gateway.usage.recorder import Recorder
from gateway.usage.repository import LedgerRepository
from tests.gateway.quotas import Now
from tests.gateway.test_ledger import NOON, NOON_NS, finished, started

SECRET_TEXT = "whsec_" + "QUJD" * 8
SECRET = load_secret(Secret(SECRET_TEXT), None)


class Receiver:
    """A server that answers what it is told to, and keeps what it got."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []

    async def _serve(self, reader, writer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        self.got.append((headers, body))
        status = self.statuses.pop(0) if self.statuses else 204
        if status:
            where = "location: http://127.0.0.1:1/\r\n" if status == 302 else ""
            writer.write(f"HTTP/1.1 {status} x\r\n{where}content-length: 0\r\n\r\n".encode())
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def listening(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"


class House:
    """An organisation that spends 17 nano-dollars with each request."""

    def __init__(self, database, folder) -> None:
        self.database, self.folder, self.now = database, folder, Now(NOON.isoformat())

    async def open(self) -> "House":
        async with self.database.publish() as session:
            service = IdentityService(session, self.now())
            first = await service.create_project("acme")
            second = await service.create_project("globex")
            LedgerRepository(session).add_price(
                Price(id="prc_1", base_model="smol", input_pico=1_000, cached_input_pico=1_000,
                      output_pico=1_000, effective_from=NOON - timedelta(days=1), created_at=NOON)
            )  # fmt: skip
        self.owner, self.projects = first.organisation_id, (first.id, second.id)
        self.recorder = await Recorder.open(UsageLog(self.folder / "usage"))
        self.ledger = Ledger(
            self.recorder.log, self.database, live_from=self.recorder.first_segment
        )
        return self

    async def spend(self, name: str, project: int = 0, at_ns: int = NOON_NS) -> None:
        facts = {"organisation": self.owner, "project": self.projects[project], "at_ns": at_ns}
        await self.recorder.started(started(name, **facts))
        await self.recorder.finished(finished(name))
        await self.ledger.settle()

    async def alert(self, threshold: int, project: int | None = None) -> str:
        row = SpendAlert(
            id=new_id("alert"), organisation_id=self.owner, threshold_nano=threshold,
            project_id=None if project is None else self.projects[project],
            recipients="a@x.example\nb@x.example", subject_prefix="Hey", created_at=self.now(),
        )  # fmt: skip
        async with self.database.unit_of_work() as session:
            LimitRepository(session).add(row)
        return row.id

    def outbox(self, url: str) -> Outbox:
        return Outbox(self.database, url, SECRET, now=self.now, look_s=0.02)

    async def look(self) -> int:
        return await SpendWatch(self.database, self.now).look()


@pytest.fixture
async def house(database, tmp_path):
    house = await House(database, tmp_path).open()
    yield house
    await house.recorder.close()


async def test_an_alert_is_told_when_its_threshold_is_reached_and_once_a_month(house):
    of_all, of_one = await house.alert(34), await house.alert(18, project=1)
    await house.spend("req_1")
    assert await house.look() == 0
    await house.spend("req_2", project=1)
    assert await house.look() == 1  # both projects together
    receiver = Receiver()
    async with receiver.listening() as url, httpx2.AsyncClient() as client:
        assert await house.outbox(url).send(client) == 1
        await house.spend("req_3", project=1)
        assert await house.look() == 1
        assert await house.look() == 0
        assert await house.outbox(url).send(client) == 1
        assert await house.outbox(url).send(client) == 0
    first, second = (json.loads(body) for _, body in receiver.got)
    assert first["type"] == "spend_alert.triggered"
    assert first["data"] == {
        "alert_id": of_all, "organization_id": house.owner, "project_id": None,
        "period": "2026-11", "currency": "USD", "threshold_amount": 0, "threshold_nano_usd": 34,
        "spent_nano_usd": 34, "recipients": ["a@x.example", "b@x.example"],
        "subject_prefix": "Hey",
    }  # fmt: skip
    assert (second["data"]["alert_id"], second["data"]["spent_nano_usd"]) == (of_one, 34)
    assert first["id"] == receiver.got[0][0]["webhook-id"]


async def test_a_raised_threshold_and_a_new_month_are_told_anew(house):
    await house.alert(17)
    await house.spend("req_1")
    assert await house.look() == 1
    async with house.database.unit_of_work() as session:
        [row] = await LimitRepository(session).alerts()
        row.threshold_nano = 34
    assert await house.look() == 0
    await house.spend("req_2")
    assert await house.look() == 1
    house.now.at = NOON + timedelta(days=2)
    assert await house.look() == 0
    december = NOON_NS + 2 * 86_400 * 10**9
    for name in ("req_3", "req_4"):
        await house.spend(name, at_ns=december)
    assert await house.look() == 1


async def test_what_was_spent_in_the_last_moments_of_a_month_is_told_in_the_next(house):
    await house.alert(17)
    last = Now("2026-11-30T23:59:59+00:00")
    await house.spend("req_1", at_ns=last.ms() * 10**6)
    house.now.at = Now("2026-12-01T00:00:20+00:00").at
    assert await house.look() == 1


async def test_gateways_that_look_at_once_write_an_alert_once(house):
    await house.alert(17)
    await house.spend("req_1")
    assert sum(await asyncio.gather(*(house.look() for _ in range(4)))) == 1


async def test_a_receiver_that_fails_gets_the_same_message_again_later_and_later(house):
    await house.alert(17)
    await house.spend("req_1")
    await house.look()
    receiver = Receiver(500, 302, 0, 429)
    async with receiver.listening() as url, httpx2.AsyncClient() as client:
        outbox, waited = house.outbox(url), []
        for attempt in range(1, 5):
            assert await outbox.send(client) == 0
            assert await outbox.send(client) == 0  # not before its time
            waited.append(wait_after(attempt))
            house.now.at += waited[-1]
        assert await outbox.send(client) == 1
        house.now.at += timedelta(days=3)
        assert await outbox.send(client) == 0
    assert [wait.total_seconds() for wait in waited] == [5, 10, 20, 40]
    assert wait_after(30) == timedelta(hours=1)
    assert len(receiver.got) == 5
    assert len({body for _, body in receiver.got}) == 1
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


async def test_gateways_take_turns_and_the_official_client_checks_the_signature(house):
    await house.alert(17)
    await house.spend("req_1")
    receiver = Receiver(503)
    client = OpenAI(api_key="x", webhook_secret=SECRET_TEXT)
    async with receiver.listening() as url:
        tasks = [asyncio.create_task(house.outbox(url).run()) for _ in range(3)]
        async with asyncio.timeout(20):
            while not receiver.got:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert len(receiver.got) == 1
            house.now.at += wait_after(1)
            while len(receiver.got) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
    assert len(receiver.got) == 2
    headers, body = receiver.got[1]
    client.webhooks.verify_signature(body, headers)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body.replace(b"17", b"18"), headers)
    late = headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) - 9)}
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body, late)


async def test_a_deleted_alert_is_not_told(house):
    await house.alert(17)
    await house.spend("req_1")
    await house.look()
    async with house.database.unit_of_work() as session:
        rows = LimitRepository(session)
        [row] = await rows.alerts()
        await rows.forget_deliveries(row.id)
        await rows.remove(row)
    receiver = Receiver()
    async with receiver.listening() as url, httpx2.AsyncClient() as client:
        assert await house.outbox(url).send(client) == 0


def test_the_secret_is_made_once_for_its_owner_alone_and_junk_is_refused(tmp_path):
    file = tmp_path / "webhook-secret"
    made = load_secret(None, file)
    assert (load_secret(None, file), len(made)) == (made, 32)
    assert file.stat().st_mode & 0o777 == 0o600
    for text in ("QUJD", "whsec_", "whsec_QUJD", "whsec_%%%"):
        with pytest.raises(ConfigError, match="alert_webhook_secret"):
            load_secret(Secret(text), file)
    for url in ("ftp://x", "https://", "example.com/hook"):
        with pytest.raises(ConfigError, match="alert_webhook_url"):
            Settings(data_dir=tmp_path, model_dir=tmp_path, served_model_name="m",
                     engines=("unix:/x",), alert_webhook_url=url)  # fmt: skip
