"""The ``loratorio`` command. Imports no torch: what needs it is handed to ``python -m engine``."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn

from gateway.cli import admin
from gateway.cli.console import Console
from gateway.cli.flags import add_serve
from gateway.cli.serve_options import FlagsInvalid, read_serve
from gateway.cli.version import installed_version

DESCRIPTION = "One 4-bit base model, very many LoRA adapters, many tenants, one batch."

# command -> (arguments put before the rest for ``python -m engine``, help)
HANDED_ON: dict[str, tuple[tuple[str, ...], str]] = {
    "engine": ((), "run an engine alone, or its tools (see `loratorio engine --help`)"),
    "bench": (("bench",), "measure an engine or a server (see `loratorio bench --help`)"),
    "plan": (("plan",), "what fits on a GPU: weights, adapters, sequences, step time"),
    "quantize": (("quantize",), "make a GPTQ or AWQ checkpoint (see `loratorio quantize --help`)"),
    "inspect": (("inspect",), "what a checkpoint or adapter is, and whether it will be served"),
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where to look: at the command's own help."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see `{self.prog} --help`)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:2] == ["bench", "routing"]:
        return simulate_routing(given[2:])
    if given and given[0] in HANDED_ON:
        before, _help = HANDED_ON[given[0]]
        hand_on([*before, *given[1:]])
    parsed = build_parser(given[0] if given else "").parse_args(given)
    parsed.process_environment = os.environ
    outcome: int = parsed.run(parsed)
    return outcome


def build_parser(chosen: str | None = None) -> Parser:
    """Of the operator's commands other than the ``chosen`` one, it knows names and help alone."""
    parser = Parser(prog="loratorio", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"loratorio {installed_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    served = commands.add_parser(
        "serve",
        help="start and supervise an engine and a gateway",
        description="Start an engine and a gateway, and keep them running until Ctrl-C.",
        allow_abbrev=False,
    )
    add_serve(served)
    served.set_defaults(run=_serve)
    admin.add_commands(commands, chosen)
    for name, (_before, text) in HANDED_ON.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from gateway.cli.serve import serve  # what it imports, other commands need not wait for

    console = Console()
    try:
        options = read_serve(arguments)
    except FlagsInvalid as error:
        console.fail(str(error))
        return 2
    return serve(options, console)


def simulate_routing(arguments: Sequence[str]) -> int:
    """It needs no engine, and the recorded times that lie in a checkout."""
    if find_spec("bench") is None or find_spec("bench.routing") is None:
        Console().fail("bench routing reads recorded step times: run it in a checkout")
        return 1
    os.execv(sys.executable, [sys.executable, "-m", "bench.routing", *arguments])  # noqa: S606


def hand_on(arguments: Sequence[str]) -> NoReturn:
    """Become ``python -m engine``."""
    os.execv(sys.executable, [sys.executable, "-m", "engine", *arguments])  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
