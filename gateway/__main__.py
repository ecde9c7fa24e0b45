"""``python -m gateway serve --settings FILE``: one gateway process.

Started by the supervisor, or by an orchestrator with a settings file of its own. SIGTERM and
SIGINT end it gracefully: /readyz says no, streams finish, usage is settled.
"""

import argparse
import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

import uvloop

from gateway import allocator, log
from gateway.app import create_app
from gateway.config import ConfigError, Settings
from gateway.db import DatabaseUnavailable
from gateway.inference.tokenizer import TokenizerInvalid
from gateway.listener import Listener

# No objects of a request refer to one another in circles, so there is nothing to find: a look at a
# few thousand young objects takes less than a millisecond, and looks at older ones are rare.
GC_THRESHOLDS = (5_000, 20, 50)

# How long a thread that reads the log, or waits for the database, may keep the loop from going on.
SWITCH_S = 0.001


def begin_serving() -> None:
    """What start-up made stays for good: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve until SIGTERM")
    serve.add_argument("--settings", type=Path, required=True, metavar="FILE", help="JSON")
    options = parser.parse_args(arguments)
    log.configure(sys.stderr)
    allocator.settle(os.environ)
    # Texts come one by one: the library's own threads would only hand each to and fro.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        settings = Settings.from_json(options.settings.read_bytes())
        uvloop.run(_serve(settings))
    except (ConfigError, DatabaseUnavailable, TokenizerInvalid, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


async def _serve(settings: Settings) -> None:
    application = create_app(settings)
    api = Listener(
        application, settings.host, settings.port, tls=settings.tls, shared=settings.workers > 1
    )
    metrics = Listener(application.metrics_page, settings.metrics_host, settings.metrics_port)

    def stop() -> None:
        application.stopping()
        api.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with application.opened(), asyncio.TaskGroup() as group:
        begin_serving()
        sys.setswitchinterval(SWITCH_S)
        group.create_task(metrics.run_until_stopped())
        log.logger("gateway").info("listening", port=api.port, metrics_port=metrics.port)
        await api.run_until_stopped()
        metrics.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
