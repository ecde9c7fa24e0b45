"""The gateway as the supervisor starts it: a process of its own, on a database of its own."""

import asyncio
import signal
import sqlite3
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from openai import AsyncOpenAI, AuthenticationError

from gateway.cli.probe import is_ready
from gateway.config import Settings
from gateway.db import Database
from gateway.identity.service import IdentityService, KeyTerms
from gateway.listener import Listener
from tests.e2e.server import free_ports
from tests.fakes.engine import FakeEngine
from tests.gateway.serving import BASE, ask, build_model_dir
from tests.stack import tenant_in

pytestmark = pytest.mark.slow

HELLO = [{"role": "user", "content": "Hello"}]
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def process(settings: Settings, folder: Path):
    file = folder / "gateway.json"
    file.write_bytes(settings.to_json())
    command = (sys.executable, "-m", "gateway", "serve", "--settings", str(file))
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def until_ready(settings: Settings) -> None:
    async with asyncio.timeout(60):
        while not await is_ready(settings.host, settings.port):
            await asyncio.sleep(0.05)


async def test_serves_revokes_within_a_second_and_lets_streams_finish(tmp_path):
    port, metrics_port = free_ports(2)
    settings = Settings(
        data_dir=tmp_path / "data", model_dir=build_model_dir(tmp_path / "model"),
        served_model_name=BASE, engines=(f"unix:{tmp_path}/e.sock",),
        port=port, metrics_port=metrics_port,
    )  # fmt: skip
    settings.data_dir.mkdir()
    _organisation, key = await tenant_in(settings, KeyTerms())
    base_url = f"http://127.0.0.1:{settings.port}/v1"
    async with (
        FakeEngine(settings.engines[0]) as engine,
        process(settings, tmp_path) as child,
        AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client,
    ):
        engine.knobs.script = lambda submit: [60] * submit.max_tokens
        await until_ready(settings)
        answer = await client.chat.completions.create(model=BASE, messages=HELLO, max_tokens=5)
        assert answer.usage.completion_tokens == 5

        scraped = await ask(settings.metrics_port, b"GET /metrics HTTP/1.1\r\nhost: x\r\n"
                            b"connection: close\r\n\r\n")  # fmt: skip
        assert b'loratorio_gateway_tokens_total{kind="completion"' in scraped.body
        assert b"loratorio_engine_open 0" in scraped.body
        tenant = engine.submitted[0].tenant
        assert f'loratorio_gateway_tenant_info{{tenant="{tenant}"'.encode() in scraped.body

        engine.knobs.token_delay_s = 0.02
        stream = await client.chat.completions.create(
            model=BASE, messages=HELLO, max_tokens=50, stream=True
        )
        await anext(aiter(stream))
        await revoke_all(settings)
        with pytest.raises(AuthenticationError):
            await list_until_refused(client)
        child.send_signal(signal.SIGTERM)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert await asyncio.wait_for(child.wait(), 60) == 0
    assert settled(settings) == [("completed", 5), ("completed", 50)]


async def list_until_refused(client: AsyncOpenAI) -> None:
    async with asyncio.timeout(20):
        while True:
            await client.models.list()
            await asyncio.sleep(0.05)


async def revoke_all(settings: Settings) -> None:
    database = Database(settings.database)
    async with database.publish() as session:
        service = IdentityService(session, datetime.now(UTC))
        await service.archive("acme")
    await database.close()


def settled(settings: Settings) -> list[tuple[str, int]]:
    with sqlite3.connect(settings.data_dir / "loratorio.db") as database:
        query = "select outcome, completion_tokens from usage_event order by started_at"
        return database.execute(query).fetchall()


async def test_a_port_in_use_is_said_in_one_line(tmp_path):
    taken = Listener(None, "127.0.0.1", 0)  # type: ignore[arg-type]
    taken._socket.listen()
    settings = Settings(
        data_dir=tmp_path, model_dir=tmp_path, served_model_name=BASE,
        engines=("unix:/nowhere",), port=taken.port, metrics_port=0,
    )  # fmt: skip
    async with process(settings, tmp_path) as child:
        _, said = await asyncio.wait_for(child.communicate(), 60)
    taken._socket.close()
    assert child.returncode == 1
    assert said.decode().splitlines()[-1].startswith(f"cannot listen on 127.0.0.1:{taken.port}")
