"""Which server a command is about: as its settings file says, or as flags do."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from engine.tls import NO_CREDENTIALS, Credentials
from gateway.cli.flags import DEFAULT_DATA_DIR
from gateway.config import DataDir, Secret, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    files: DataDir
    database_url: Secret | None
    redis_url: Secret | None
    pepper: Secret | None = None
    adapter_store: str | None = None
    credentials: Credentials = NO_CREDENTIALS  # shown to engines


def add_stores(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settings", type=Path, metavar="FILE",
        help="of the gateway (JSON), which says the following; a flag comes before it",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help=f"of the server (default: {DEFAULT_DATA_DIR})"
    )
    parser.add_argument("--database-url", metavar="URL", help="of the server, if it has one")
    parser.add_argument("--redis-url", metavar="URL", help="of the server: gateways hear at once")


def stores_of(arguments: argparse.Namespace) -> Stores:
    """Raises ConfigError, or OSError where the settings cannot be read."""
    database_url, redis_url = _secret(arguments.database_url), _secret(arguments.redis_url)
    if arguments.settings is None:
        return Stores(
            files=DataDir(arguments.data_dir or DEFAULT_DATA_DIR),
            database_url=database_url,
            redis_url=redis_url,
        )
    said = Settings.from_json(arguments.settings.read_bytes())
    return Stores(
        files=DataDir(arguments.data_dir or said.data_dir),
        database_url=database_url or said.database_url,
        redis_url=redis_url or said.redis_url,
        pepper=said.pepper,
        adapter_store=said.adapter_store_url,
        credentials=said.engine_credentials,
    )


def _secret(text: str | None) -> Secret | None:
    return Secret(text) if text else None
