"""What every command of ours says of itself, asked as a reader would: with ``--help``."""

import contextlib
import io
import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterator
from functools import cache

from bench.routing.__main__ import main as routing
from engine.bench.cli import ALONE, OTHERS
from engine.bench.cli import main as bench
from engine.cli import parse as engine
from engine.demo.build import main as demo
from engine.inspection.cli import main as inspect
from engine.plan import main as plan
from engine.quantiser.cli import main as quantize
from gateway.cli.main import HANDED_ON, build_parser

FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
TOOLS: dict[str, Callable[[list[str]], object]] = {
    "bench": bench, "plan": plan, "quantize": quantize, "inspect": inspect, "engine": engine,
}  # fmt: skip


@cache
def flags() -> dict[tuple[str, ...], frozenset[str]]:
    """By command, without its program's name, e.g. ("key", "create")."""
    return {words: frozenset(FLAG.findall(text)) | {"--help"} for words, text in _helps()}


def _helps() -> Iterator[tuple[tuple[str, ...], str]]:
    for name in _subcommands(build_parser()):
        if name in HANDED_ON:
            yield (name,), _said(lambda name=name: TOOLS[name](["--help"]))  # type: ignore[misc]
            continue
        parser = _subcommands(build_parser(name))[name]
        yield (name,), parser.format_help()
        for verb, found in _subcommands(parser).items():
            yield (name, verb), found.format_help()
    for name in (*ALONE, *OTHERS):
        yield ("bench", name), _said(lambda name=name: bench([name, "--help"]))  # type: ignore[misc]
    yield ("bench", "routing"), _said(lambda: routing(["--help"]))
    yield ("engine", "serve"), _said(lambda: engine(["serve", "--help"]))
    yield ("engine", "demo"), _said(lambda: demo(["--help"]))


def _subcommands(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            return dict(action.choices)
    return {}


def _said(asked: Callable[[], object]) -> str:
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard), contextlib.suppress(SystemExit):
        asked()
    return heard.getvalue()
