"""``loratorio drain ADDRESS``: an engine takes nothing new, finishes what it has, and ends.

The same as SIGTERM to its process, from anywhere that may talk to it. Gateways stop sending to it.
"""

import argparse
import asyncio
from pathlib import Path

from engine.address import AddressInvalid
from engine.client import EngineClient
from engine.stream import EngineLost
from gateway.cli.console import Console
from gateway.cli.desk import Commands
from gateway.cli.stores import stores_of
from gateway.config import ConfigError

DEFAULT_WAIT_S = 60.0


def add(group: Commands) -> None:
    text = "have an engine finish what it has, and end"
    parser = group.add_parser("drain", help=text, description=text, allow_abbrev=False)
    parser.add_argument("engine", metavar="ADDRESS", help="unix:PATH, tcp:HOST:PORT or tls:…")
    parser.add_argument(
        "--wait", type=float, default=DEFAULT_WAIT_S, metavar="SECONDS",
        help="for it to have left; 0 only tells it (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="of a gateway: what is shown to its engines"
    )
    parser.set_defaults(run=run, data_dir=None, database_url=None, redis_url=None)


def run(arguments: argparse.Namespace) -> int:
    console = Console()
    try:
        console.say(asyncio.run(_drain(arguments)))
    except (ConfigError, AddressInvalid, EngineLost, OSError) as error:
        console.fail(str(error))
        return 1
    except TimeoutError:
        console.fail(f"{arguments.engine} still works after {arguments.wait:g} s")
        return 1
    return 0


async def _drain(arguments: argparse.Namespace) -> str:
    """Raises ConfigError, AddressInvalid, EngineLost, OSError, TimeoutError."""
    credentials = stores_of(arguments).credentials
    client = await EngineClient.connect(arguments.engine, gateway="drain", credentials=credentials)
    async with client:
        client.drain()
        await client.flush()
        if arguments.wait <= 0:
            return f"{client.welcome.engine} was told to leave"
        async with asyncio.timeout(arguments.wait):
            lost = await client.wait_lost()
        if client.goodbye is None:
            raise lost
        return f"{client.welcome.engine} has left: {client.goodbye}"
