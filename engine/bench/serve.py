"""``loratorio bench serve``: a running server over HTTP with streaming.

    loratorio serve --demo --ready-file ready.json &
    loratorio bench serve --ready ready.json --input-len 50 --output-len 64 \\
        --num-prompts 200 --concurrency 16

Reports requests and tokens per second, and mean and P99 of latency, time to first token and time
per output token. When a request fails, or gets other than the tokens it asked for, nothing is
reported. Times are the client's: run it beside the server for the server's, elsewhere for users'.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.bench.http_stream import BenchFailed, Model, Served, stream
from engine.bench.load import TOKENS, Load, Outcome, run
from engine.bench.rows import KEY, Report, Row, gpu_name
from engine.flags import Parser, amount, count

BAR = 30  # characters


def main(argv: Sequence[str]) -> int:
    """Returns 1 when the server did not do what was asked."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.ready and not (options.base_url and options.models):
        parser.error("give --ready FILE, or --base-url and --models")
    base_url, models = _target(options)
    load = Load(
        models=models, input_len=options.input_len, output_len=options.output_len,
        num_prompts=options.num_prompts, concurrency=options.concurrency, rate=options.rate,
        zipf=options.zipf, seed=options.seed, vocabulary=tuple(options.token_range),
    )  # fmt: skip
    try:
        outcome = asyncio.run(_measure(base_url, load, warm=not options.cold))
    except (BenchFailed, OSError, TimeoutError) as failure:
        print(f"not reported: {failure}", file=sys.stderr)
        return 1
    if outcome.failures:
        count = len(outcome.failures)
        print(
            f"not reported: {count} of {load.num_prompts} requests failed, the first: "
            f"{outcome.failures[0]}",
            file=sys.stderr,
        )
        return 1
    device = options.device or gpu_name() or "cpu"  # the server is taken to be here
    report = Report(device, rows(load, outcome), ["serve", *argv])
    print(report.table())
    print(report.write(options.out, f"serve-{models[0].name}-{_pace(load, '-')}", {}))
    return 0


async def _measure(base_url: str, load: Load, *, warm: bool) -> Outcome:
    if warm:  # adapters are in memory and every path was taken once
        for model in load.models:
            async with asyncio.timeout(load.timeout_s):
                await stream(base_url, model, range(load.vocabulary[0], load.vocabulary[0] + 8), 2)
    return await run(base_url, load, _bar(load.num_prompts))


def rows(load: Load, outcome: Outcome) -> list[Row]:
    """Milliseconds and rates of requests that all succeeded."""
    found, seconds = outcome.streams, outcome.seconds
    figures = [
        ("requests", len(found) / seconds, "requests/s"),
        ("output throughput", sum(each.tokens for each in found) / seconds, "tok/s"),
    ]
    series = {
        "latency": [each.total_s for each in found],
        "time to first token": [each.first_s for each in found],
        "time per output token": [
            (each.total_s - each.first_s) / (each.tokens - 1) for each in found if each.tokens > 1
        ],
    }
    for name, values in series.items():
        if values:
            figures.append((f"{name}, mean", 1e3 * statistics.fmean(values), "ms"))
            figures.append((f"{name}, P99", 1e3 * percentile(values, 99), "ms"))
    return [
        Row(
            bench="serve",
            model=load.models[0].name,
            format="over HTTP",
            rank=0,
            batch=load.concurrency or 0,
            adapters=len(load.models) - 1,
            context=load.input_len,
            metric=metric,
            value=value,
            unit=unit,
            op=_pace(load, " "),
        )
        for metric, value, unit in figures
    ]


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def _pace(load: Load, space: str) -> str:
    pace = f"{load.rate:g}/s" if load.rate else f"{load.concurrency} at a time"
    words = f"{load.input_len} in {load.output_len} out {pace}"
    return words.replace("/", "-per-" if space != " " else "/").replace(" ", space)


def _bar(total: int) -> Callable[[Outcome], None]:
    """A progress bar where somebody watches, else nothing."""

    def draw(outcome: Outcome) -> None:
        done, failed = len(outcome.streams), len(outcome.failures)
        full = BAR * (done + failed) // total
        text = f"\r[{'█' * full}{' ' * (BAR - full)}] {done + failed}/{total}"
        text += f", {failed} failed" if failed else ""
        sys.stderr.write(text + ("\n" if done + failed == total else ""))
        sys.stderr.flush()

    return draw if sys.stderr.isatty() else lambda outcome: None


def _target(options: argparse.Namespace) -> tuple[str, list[Model]]:
    if options.ready:
        served = Served.read(options.ready)
        return options.base_url or served.base_url, [served.base, *served.adapters]
    key = options.api_key or "EMPTY"
    return options.base_url, [Model(name, key) for name in options.models]


def _parser() -> Parser:
    parser = Parser(
        prog="loratorio bench serve", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--base-url", metavar="URL", help="e.g. http://127.0.0.1:8000/v1")
    parser.add_argument("--ready", type=Path, metavar="FILE", help="the server's --ready-file")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="most popular first")
    parser.add_argument(KEY, dest="api_key", metavar="KEY")
    parser.add_argument("--input-len", type=count, default=512, metavar="TOKENS")
    parser.add_argument("--output-len", type=count, default=128, metavar="TOKENS")
    parser.add_argument("--num-prompts", type=count, default=256, metavar="N")
    pace = parser.add_mutually_exclusive_group(required=True)
    pace.add_argument("--concurrency", type=count, metavar="N", help="closed loop")
    pace.add_argument("--rate", type=amount, metavar="PER_SECOND", help="open loop, Poisson")
    parser.add_argument("--zipf", type=float, default=1.0, metavar="S", help="0: models alike")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--token-range", type=int, nargs=2, default=TOKENS, metavar="ID")
    parser.add_argument("--cold", action="store_true", help="no request before the first counted")
    parser.add_argument("--device", help="of the server; names the folder of the results")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    return parser
