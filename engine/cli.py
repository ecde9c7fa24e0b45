"""The command line of ``python -m engine``: flags known from vLLM, turned into settings.

Imports no torch, so that ``--help`` and a wrong flag are answered at once.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.flags import Parser
from engine.serve_flags import DEFAULTS, add_serve


@dataclass(frozen=True, slots=True)
class Serve:
    config: EngineConfig
    ready_fd: int | None  # gets one line when gateways can connect


@dataclass(frozen=True, slots=True)
class Tool:
    """A command beside serving; the arguments are its own."""

    name: str  # of TOOLS
    arguments: tuple[str, ...]


TOOLS = {
    "demo": "build the demo model",
    "bench": "measure an engine or a server",
    "plan": "what fits on a GPU, and how fast it can be",
    "quantize": "make a GPTQ or AWQ checkpoint, and say what it cost",
    "inspect": "what a checkpoint or an adapter is, and whether it will be served",
}


def parse(argv: Sequence[str]) -> Serve | Tool:
    """Raises ConfigError; exits on wrong flags, as argparse does."""
    parser = Parser(prog="python -m engine", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    served = commands.add_parser("serve", help="serve one model to gateways", allow_abbrev=False)
    add_serve(served)
    for name, text in TOOLS.items():
        commands.add_parser(name, help=text, add_help=False)
    if argv and argv[0] in TOOLS:
        return Tool(argv[0], tuple(argv[1:]))
    arguments = parser.parse_args(argv)
    return Serve(_config(arguments), arguments.ready_fd)


def _config(arguments: argparse.Namespace) -> EngineConfig:
    sequences = arguments.max_num_seqs
    if sequences is None:  # a small token budget alone is no contradiction
        sequences = max(1, min(DEFAULTS.max_num_seqs, arguments.max_num_batched_tokens))
    same = {field.name for field in fields(EngineConfig)} & vars(arguments).keys()
    return EngineConfig(
        **{name: getattr(arguments, name) for name in same}
        | {
            "max_num_seqs": sequences,
            "page_tokens": arguments.block_size,
            "register": _told(arguments.register),
            "speculation": arguments.speculative_config,
            "max_step_s": arguments.max_step_ms and arguments.max_step_ms / 1000,
        }
    )


def _told(given: str | None) -> str | None:
    """An address may hold a password, which a list of processes should not show."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--register {given}: cannot be read ({error})") from error
