"""Which engine gets a request, among a thousand: how good the choice is, and how long it takes.

    loratorio bench routing [--engines 1000] [--adapters 100000] [--requests 100000]

Simulated with the passes, prompts and adapters that were measured on an H200; the decisions are
those of ``gateway/fleet/router.py``, made by several gateways that each see a part of the traffic
and share nothing. Random, round-robin and least loaded choose for the same arrivals. At the end one
engine in a hundred leaves, with all that it held, and as many come that hold nothing.
"""

import argparse
import gc
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice

from bench import cpu_rows
from bench.routing.engines import SimEngine
from bench.routing.policies import POLICIES, Ours
from bench.routing.simulation import Seen, Simulation
from bench.routing.steps import StepTimes
from bench.routing.traffic import Traffic
from engine.bench.rows import Row
from gateway.fleet.router import Wish

PACKAGES = ("numpy",)
LIMIT_US = 20.0
MEAN_ANSWER = 264  # tokens, of the log-normal lengths
BUSY = 64  # sequences that an engine runs, on average
ROUNDS = 2  # of ours; each decision is timed by its quickest
LEAVING = 0.01  # share of the engines that are replaced
WATCHED = 10_000  # adapters whose place is looked at before and after


@dataclass(frozen=True, slots=True)
class Size:
    engines: int
    adapters: int
    requests: int
    gateways: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="loratorio bench routing", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--adapters", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args(arguments)
    size = Size(options.engines, options.adapters, options.requests, options.gateways)
    if min(size.engines, size.adapters, size.requests, size.gateways) < 1:
        parser.error("--engines, --adapters, --requests and --gateways are at least 1")
    busy = os.getloadavg()[0]
    rows = [row for name in POLICIES for row in measured(name, size)] + moved(size)
    rows.append(_row("ours", size, "load average of the machine as it began", busy, "processes"))
    print(cpu_rows.table(rows))
    if not options.dry:
        print(cpu_rows.write(rows, "routing", PACKAGES))
    slowest = next(row.value for row in rows if row.metric == "decision, CPU, P99")
    return int(slowest > LIMIT_US)


def measured(name: str, size: Size) -> list[Row]:
    seen, after = _run(name, size)
    for _ in range(ROUNDS - 1 if name == "ours" else 0):
        again, _after = _run(name, size)  # the same arrivals: what else the machine did goes out
        seen.cpu_ns = list(map(min, seen.cpu_ns, again.cpu_ns))
        seen.wall_ns = list(map(min, seen.wall_ns, again.wall_ns))
    return _rows(name, size, seen, after)


def _run(name: str, size: Size) -> tuple[Seen, Seen]:
    """With all engines, and after some were replaced."""
    times = StepTimes.recorded()
    engines = _engines(times)
    policies = [POLICIES[name](size.gateways) for _ in range(size.gateways)]
    simulation = Simulation(policies, list(islice(engines, size.engines)))
    rate = size.engines * BUSY / (MEAN_ANSWER * times.step_s(BUSY))
    arrivals = Traffic(size.adapters, rate).arrivals(size.requests)
    simulation.run(islice(arrivals, size.requests // 2), timed=False)
    gc.collect()
    gc.freeze()  # as a gateway does with what it began with
    gc.set_threshold(20_000, 10, 20)
    seen = simulation.run(islice(arrivals, size.requests // 4))
    simulation.replace(max(int(size.engines * LEAVING), 1), engines)
    after = simulation.run(arrivals, timed=False)
    gc.unfreeze()
    return seen, after


def moved(size: Size) -> list[Row]:
    """Which share of cold adapters has another engine than before, once some were replaced."""
    engines = _engines(StepTimes.recorded())
    there, policy = list(islice(engines, size.engines)), Ours()
    policy.follow(there)
    wishes = [Wish(sha256(b"%d" % number).hexdigest()) for number in range(WATCHED)]
    before = [policy.choose(wish) for wish in wishes]
    count = max(int(size.engines * LEAVING), 1)
    policy.follow([*there[count:], *islice(engines, count)])
    changed = sum(policy.choose(wish) is not was for wish, was in zip(wishes, before, strict=True))
    row = _row("ours", size, "adapters moved where 1 % of the engines were replaced",
               100 * changed / WATCHED, "%", 200 * count / size.engines)  # fmt: skip
    return [row]


def _engines(times: StepTimes) -> Iterator[SimEngine]:
    for number in itertools.count():
        yield SimEngine(f"tcp:10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8471", times)


def _rows(name: str, size: Size, seen: Seen, after: Seen) -> list[Row]:
    def share(part: int, whole: int) -> float:
        return 100 * part / max(whole, 1)

    def part(values: list[float] | list[int], quantile: float) -> float:
        return float(sorted(values)[min(int(quantile * len(values)), len(values) - 1)])

    found = [
        ("decision, CPU, P50", part(seen.cpu_ns, 0.5) / 1000, "us"),
        ("decision, CPU, P99", part(seen.cpu_ns, 0.99) / 1000, "us"),
        ("decision, wall, P99", part(seen.wall_ns, 0.99) / 1000, "us"),
        ("adapter was warm", share(seen.warm, seen.requests), "%"),
        ("prompt tokens found computed", share(seen.found_tokens, seen.prompt_tokens), "%"),
        ("busiest engine over the mean", sum(seen.peaks) / max(len(seen.peaks), 1), "times"),
        ("time to the first token, P50", part(seen.first_s, 0.5) * 1000, "ms"),
        ("time to the first token, P99", part(seen.first_s, 0.99) * 1000, "ms"),
        ("adapter was warm after 1 % left", share(after.warm, after.requests), "%"),
        ("found computed after 1 % left", share(after.found_tokens, after.prompt_tokens), "%"),
    ]
    return [_row(name, size, metric, value, unit) for metric, value, unit in found]


def _row(
    name: str, size: Size, metric: str, value: float, unit: str, floor: float | None = None
) -> Row:
    return Row(
        bench="routing", model=f"{size.engines} engines", format="", rank=16, batch=0,
        adapters=size.adapters, context=0, metric=metric, value=value, unit=unit, op=name,
        floor=floor,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
