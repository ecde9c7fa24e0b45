"""Engines on a Ray cluster: as many as their queues need, each with its GPUs on one node.

    python -m engine.on_ray --least 2 --most 8 --gpus 1 -- --model DIR --register redis://…

What follows ``--`` are flags of ``python -m engine serve``. Needs the extra ``ray``.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

from engine.on_ray.engines import Engines
from engine.on_ray.process import LISTEN
from engine.on_ray.scaling import Scaling


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(
        prog="python -m engine.on_ray", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--address", default="auto", help="of the cluster (default: this node's)")
    parser.add_argument("--least", type=int, default=1, metavar="N", help="engines at any time")
    parser.add_argument("--most", type=int, default=8, metavar="N", help="engines at any time")
    parser.add_argument("--cpus", type=float, default=4.0, help="of one engine")
    parser.add_argument("--gpus", type=float, default=1.0, help="of one engine, on one node")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS",
        help="in which fewer would have done, before one is drained",
    )  # fmt: skip
    parser.add_argument("engine", nargs="*", metavar="-- FLAGS", help="of engine serve")
    options = parser.parse_args(arguments)
    if not 0 <= options.least <= options.most or options.most < 1:
        parser.error(f"--least {options.least} and --most {options.most}: 0 <= least <= most")
    try:
        import ray
    except ImportError:
        parser.error("ray is not installed: pip install 'loratorio[ray]'")
    ray.init(address=options.address, log_to_driver=True)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> None:
    from engine.on_ray.placement import Needs, Placed

    command = [sys.executable, "-m", "engine", "serve", "--listen", LISTEN, *options.engine]
    scaling = Scaling(options.least, options.most, options.patience)
    needs = Needs(options.cpus, options.gpus)
    engines = Engines(lambda: Placed.start(command, needs), scaling)
    task = asyncio.ensure_future(engines.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
