"""``loratorio import litellm``: another proxy's keys, teams and prices as a file of tenants.

Reads files and writes one; no database and no other server is asked.
"""

import argparse
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from gateway.cli.desk import Commands
from gateway.declared.reading import declaration
from gateway.declared.source import DeclarationInvalid, read
from gateway.litellm.dump import Dump, DumpInvalid, read_config, read_list
from gateway.litellm.tenants import Import

HEAD = """# Made by `loratorio import litellm`. Look it over, then:
#   loratorio apply -f FILE --dry-run
"""


def add(group: Commands) -> None:
    text = "write LiteLLM's config, teams and keys as a file of tenants"
    parser = group.add_parser("litellm", help=text, description=text, allow_abbrev=False)
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="its config.yaml")
    for name, path in (
        ("teams", "/team/list"),
        ("keys", "/key/list?return_full_object=true&size=1000"),
        ("users", "/user/list?page_size=1000"),
    ):
        parser.add_argument(
            f"--{name}", type=Path, metavar="FILE", help=f"what its GET {path} answers"
        )
    parser.add_argument(
        "--organisation", default="default", metavar="NAME", help="of teams that have none"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: standard output"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        work = Import(_dump(arguments), arguments.organisation, datetime.now(UTC))
        text = HEAD + as_yaml(work.tenants())
        declaration(read(text.encode(), "tenants.yaml"))  # what `apply` would refuse is said here
        if arguments.output is None:
            print(text, end="")
        else:
            arguments.output.write_text(text)
    except (DumpInvalid, DeclarationInvalid, OSError) as error:
        print(f"loratorio: error: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    for note in work.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _dump(arguments: argparse.Namespace) -> Dump:
    lists = {
        name: read_list(file, name) if (file := getattr(arguments, name)) else []
        for name in ("teams", "keys", "users")
    }
    return Dump(config=read_config(arguments.config) if arguments.config else {}, **lists)


def as_yaml(tenants: dict[str, Any]) -> str:
    """Amounts as digits."""
    filled = {name: value for name, value in tenants.items() if value}
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(Decimal, _amount)
    return str(yaml.dump(filled, Dumper=dumper, sort_keys=False, allow_unicode=True))


def _amount(dumper: Any, value: Decimal) -> Any:
    text = f"{value:f}"
    kind = "float" if "." in text else "int"
    return dumper.represent_scalar(f"tag:yaml.org,2002:{kind}", text)
