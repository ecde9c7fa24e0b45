"""``loratorio top``: engines, tenants and adapters live, from the metrics page."""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.cli.desk import Commands
from gateway.cli.scrape import Between, page_of, scrape
from gateway.errors import GatewayUnreachable

ADDRESS = "127.0.0.1:8001"
GW, EN = "loratorio_gateway", "loratorio_engine"
LEAST_INTERVAL_S = 0.5


def add(group: Commands) -> None:
    text = "watch engines, tenants and adapters live"
    parser = group.add_parser("top", help=text, description=text, allow_abbrev=False)
    parser.add_argument(
        "--metrics",
        default=ADDRESS,
        metavar="HOST:PORT",
        help="where a gateway's /metrics is (default: %(default)s)",
    )
    parser.add_argument("--interval", type=_interval, default=2.0, metavar="SECONDS")
    parser.add_argument("--rows", type=_rows, default=12, metavar="N", help="of each table")
    parser.add_argument("--once", action="store_true", help="print one interval and end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    url = page_of(arguments.metrics, "/metrics")
    console = Console()
    try:
        before = scrape(url, time.monotonic())
        time.sleep(arguments.interval)
        shown = Between(before, scrape(url, time.monotonic()))
        if arguments.once or not console.is_terminal:
            console.print(view(shown, arguments.rows))
            return 0
        with Live(view(shown, arguments.rows), console=console, screen=True) as live:
            while True:
                time.sleep(arguments.interval)
                shown = _next(shown, url)
                live.update(view(shown, arguments.rows))
    except GatewayUnreachable as error:
        print(f"loratorio: error: {error}; say with --metrics where they are", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _next(shown: Between, url: str) -> Between:
    """A gateway that restarts is waited for."""
    try:
        return Between(shown.now, scrape(url, time.monotonic()))
    except GatewayUnreachable:
        return shown


def view(shown: Between, rows: int) -> Group:
    return Group(_summary(shown), _engine(shown), _tenants(shown, rows), _adapters(shown, rows))


def _summary(shown: Between) -> Text:
    now = shown.now
    line = Text.assemble(
        ("loratorio  ", "bold"),
        f"{now.sum(f'{GW}_engines_ready'):.0f} engines ready   ",
        f"{now.sum(f'{GW}_requests_inflight'):.0f} requests open   ",
        f"{shown.rate(f'{GW}_answers_total'):.1f} answers/s   ",
        f"first token {_ms(shown.mean(f'{GW}_time_to_first_token_seconds'))}   ",
        f"between tokens {_ms(shown.mean(f'{GW}_inter_token_latency_seconds'))}",
    )
    for metric, told in (
        ("limits_degraded", "limit store away"),
        ("ledger_differences", "BOOKS DIFFER"),
    ):
        if now.sum(f"{GW}_{metric}"):
            line.append(f"   {told}", "bold red")
    return line


def _engine(shown: Between) -> Table:
    now = shown.now
    pages = now.by(f"{EN}_pages", "held_by")
    total = sum(pages.values())
    used = total - pages.get("nobody", 0) - pages.get("prefix", 0)
    rows = [
        [
            f"{now.sum(f'{EN}_num_requests_running'):.0f}",
            f"{now.sum(f'{EN}_num_requests_waiting'):.0f}",
            f"{shown.rate(f'{EN}_prompt_tokens_total'):.0f}",
            f"{shown.rate(f'{EN}_generation_tokens_total'):.0f}",
            f"{shown.rate(f'{EN}_passes_total'):.1f}",
            _ms(shown.mean(f"{EN}_step_seconds")),
            f"{used:.0f} of {total:.0f}",
            f"{now.sum(f'{EN}_adapters_resident'):.0f}",
        ]
    ]
    return _table(
        "Engine",
        ("run", "wait", "prompt/s", "answer/s", "pass/s", "pass", "pages",
         "adapters"),
        rows,
    )  # fmt: skip


def _tenants(shown: Between, rows: int) -> Table:
    """By the engine's count; those that run or wait first."""
    now = shown.now
    called = now.names(f"{GW}_tenant_info", "tenant", "project_name")
    standing = {
        what: now.by(f"{EN}_tenant_{what}", "tenant") for what in ("running", "waiting", "pages")
    }
    prompts = shown.rates(f"{EN}_tenant_prompt_tokens_total", "tenant", kind="all")
    waited = shown.rates(f"{EN}_tenant_waited_seconds_total", "tenant")
    tenants = sorted(
        set().union(*standing.values(), prompts),
        key=lambda t: (-standing["running"].get(t, 0), -standing["waiting"].get(t, 0), t),
    )
    return _table(
        "Tenants",
        ("project", "running", "waiting", "pages", "prompt/s", "waiting s/s"),
        [
            [
                called.get(tenant, tenant[:12]),
                *(f"{standing[what].get(tenant, 0):.0f}" for what in standing),
                f"{prompts.get(tenant, 0):.0f}",
                f"{waited.get(tenant, 0):.2f}",
            ]
            for tenant in tenants[:rows]
        ],
    )


def _adapters(shown: Between, rows: int) -> Table:
    now = shown.now
    called = now.names(f"{GW}_adapter_info", "adapter", "model")
    tiers = now.names(f"{EN}_adapter_tier", "adapter", "tier")
    running = now.by(f"{EN}_adapter_running", "adapter")
    pages = now.by(f"{EN}_adapter_pages", "adapter")
    loads = now.by(f"{EN}_adapter_load_seconds_count", "adapter")
    evicted = now.by(f"{EN}_adapter_evicted_total", "adapter")
    digests = sorted(
        tiers.keys() | running.keys(), key=lambda d: (-running.get(d, 0), -pages.get(d, 0), d)
    )
    return _table(
        "Adapters",
        ("adapter", "where", "running", "pages", "loads", "evicted"),
        [
            [
                called.get(digest, digest[:12]),
                tiers.get(digest, "-"),
                f"{running.get(digest, 0):.0f}",
                f"{pages.get(digest, 0):.0f}",
                f"{loads.get(digest, 0):.0f}",
                f"{evicted.get(digest, 0):.0f}",
            ]
            for digest in digests[:rows]
        ],
    )


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # names are the tenants': no markup in them
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


def _interval(text: str) -> float:
    found = float(text)
    if not LEAST_INTERVAL_S <= found <= 3600:
        raise argparse.ArgumentTypeError(f"{found} is not from {LEAST_INTERVAL_S} to 3600")
    return found


def _rows(text: str) -> int:
    if not text.isdecimal() or not 1 <= len(text) <= 4 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not from 1 to 9999")
    return int(text)
