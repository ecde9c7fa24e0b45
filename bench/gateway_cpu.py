"""CPU that the gateway spends on a request, beside a bare ASGI echo under the same load.

    python -m bench.gateway_cpu [--requests N] [--database-url URL] [--redis-url URL]

A stub engine, the gateway, the echo and the load are processes of their own. The gateway does
all it does in production: keys, limits, tokenising, the durable usage log, the database. Its CPU
time, threads and settlement included, is what ``/proc`` says after the ledger has caught up.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from engine.bench.rows import Row
from gateway.cli.probe import is_ready
from gateway.config import Secret, Settings
from gateway.db import Database
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.usage.report import UsageReport, Window
from migrations import runner
from tests.e2e.server import free_port
from tests.gateway.serving import BASE, build_model_dir

ROOT = Path(__file__).parents[1]
PROMPT_WORDS = 66  # about 200 tokens of the stub's vocabulary
ANSWER_TOKENS = 16
CONNECTIONS = 16
SETTLE_S = 60.0
PACKAGES = ("uvicorn", "sqlalchemy", "asyncpg", "msgspec")
ECHO = """
import asyncio, sys, uvloop
from gateway.listener import Listener

async def echo(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = [(b"content-type", b"application/json"),
               (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

uvloop.run(Listener(echo, "127.0.0.1", int(sys.argv[1])).run_until_stopped())
"""


class BenchFailed(RuntimeError):
    """A request was refused or not counted: there is nothing to report."""


@dataclass(frozen=True, slots=True)
class Stack:
    settings: Settings
    key: str
    organisation: str
    gateway: int  # process ids
    echo: int
    echo_port: int


@asynccontextmanager
async def stack(
    folder: Path, database_url: str | None, redis_url: str | None
) -> AsyncIterator[Stack]:
    """A stub engine, a gateway and an echo, ready; ended on leaving."""
    settings = Settings(
        data_dir=folder / "data",
        model_dir=build_model_dir(folder / "model"),
        served_model_name=BASE,
        engines=(f"unix:{folder}/e.sock",),
        port=free_port(),
        metrics_port=free_port(),
        database_url=Secret(database_url) if database_url else None,
        redis_url=Secret(redis_url) if redis_url else None,
    )
    settings.data_dir.mkdir()
    organisation, key = await _tenant(settings)
    (folder / "gateway.json").write_bytes(settings.to_json())
    echo_port = free_port()
    async with AsyncExitStack() as running:
        await _run(running, "-m", "tests.fakes.engine", settings.engines[0], "0")
        gateway = await _run(
            running, "-m", "gateway", "serve", "--settings", str(folder / "gateway.json")
        )
        echo = await _run(running, "-c", ECHO, str(echo_port))
        async with asyncio.timeout(30):
            while not await is_ready(settings.host, settings.port):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield Stack(settings, key, organisation, gateway, echo, echo_port)


async def _tenant(settings: Settings) -> tuple[str, str]:
    database = Database(settings.database)
    await runner.upgrade(database)
    async with database.publish() as session:
        service = IdentityService(session, datetime.now(UTC))
        project = await service.create_project(f"bench{time.time_ns()}")
        peppers = Peppers.load(settings.pepper, settings.pepper_file)
        terms = KeyTerms(requests_per_minute=10**8, tokens_per_minute=10**9)
        key = service.issue(project, terms, peppers=peppers).text
        found = project.organisation_id, key
    await database.close()
    return found


async def _run(running: AsyncExitStack, *arguments: str) -> int:
    child = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stderr=subprocess.DEVNULL
    )

    async def end() -> None:
        if child.returncode is None:
            child.kill()
        await child.wait()

    running.push_async_callback(end)
    return child.pid


def cpu_s(process: int) -> float:
    """User and system time of all threads."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, path: str, key: str, body: bytes, requests: int) -> None:
    """Closed loop over connections that are kept. Raises BenchFailed."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()

    async def connection(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count):
            writer.write(head + body)
            await _answer(reader)
        writer.close()

    each = requests // CONNECTIONS
    async with asyncio.timeout(300):
        await asyncio.gather(*(connection(each) for _ in range(CONNECTIONS)))


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise BenchFailed(head.split(b"\r\n")[0].decode())
    if b"chunked" in head:
        await reader.readuntil(b"0\r\n\r\n")
        return
    size = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(size.split(b":")[1]))


def body(*, stream: bool) -> bytes:
    text = "The quick brown fox " * (PROMPT_WORDS // 4)
    return orjson.dumps(
        {
            "model": BASE,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": ANSWER_TOKENS,
            "stream": stream,
        }
    )


async def settled(served: Stack, requests: int) -> None:
    """Wait until the ledger has this many. Raises BenchFailed."""
    database = Database(served.settings.database)
    window = Window(datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
    deadline = time.monotonic() + SETTLE_S
    try:
        while True:
            async with database.reading() as session:
                found = await UsageReport(session, served.organisation).total(window)
            if found.requests >= requests:
                return
            if time.monotonic() > deadline:
                raise BenchFailed(f"{found.requests} of {requests} requests in the ledger")
            await asyncio.sleep(0.5)
    finally:
        await database.close()


async def measure(served: Stack, requests: int) -> dict[str, float]:
    """Microseconds of CPU per request: the echo, and the gateway with and without streaming."""
    found, done = dict[str, float](), 0
    port, path = served.settings.port, "/v1/chat/completions"
    for name, stream in (("whole", False), ("streamed", True)):
        sent = body(stream=stream)
        for counted in (CONNECTIONS * 8, requests):  # the first warms up
            before = cpu_s(served.gateway)
            await load(port, path, served.key, sent, counted)
            done += counted
            await settled(served, done)
            found[name] = (cpu_s(served.gateway) - before) / counted * 1e6
    for counted in (CONNECTIONS * 8, requests):
        before = cpu_s(served.echo)
        await load(served.echo_port, "/", served.key, body(stream=False), counted)
        found["echo"] = (cpu_s(served.echo) - before) / counted * 1e6
    return found


def _row(metric: str, value: float, unit: str) -> Row:
    return Row(
        bench="gateway", model="stub engine", format="", rank=0, batch=CONNECTIONS, adapters=0,
        context=200, metric=metric, value=value, unit=unit, peer="", peer_value=None,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway_cpu", description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--database-url")
    parser.add_argument("--redis-url")
    options = parser.parse_args(arguments)

    async def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            urls = options.database_url, options.redis_url
            async with stack(Path(folder), *urls) as served:
                return await measure(served, options.requests // CONNECTIONS * CONNECTIONS)

    try:
        found = asyncio.run(run())
    except (BenchFailed, TimeoutError) as failure:
        print(failure, file=sys.stderr)
        return 1
    for name, value in found.items():
        print(f"{name:10} {value:8.0f} us  {value / found['echo']:5.1f} times the echo")
    return 0


if __name__ == "__main__":
    sys.exit(main())
