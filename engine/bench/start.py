"""``loratorio bench start``: how long an engine takes from nothing to serving, phase by phase.

    loratorio bench start --shape llama-3.1-8b                     on a GPU
    loratorio bench start --shape tiny -- --device cpu             flags of the engine after --

Starts one on a random checkpoint, twice: with an empty cache of kernels, then with what the first
left there. Phases that count kernels are named for their number, so they differ between the two.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.bench.rows import Report, Row, gpu_name, versions
from engine.bench.shapes import FORMATS, SHAPES
from engine.cli import Serve, parse
from engine.config import Device, EngineConfig
from engine.errors import ConfigError
from engine.flags import Parser

TOLD = re.compile(r"started in (\d+\.\d+) s: (.+)")  # see Timeline.tell
START_S = 1200.0  # an engine that serves nobody by then is ended
LEAVE_S = 60.0  # seconds an engine has to end
SHOWN = 20  # last lines of one that did not start


@dataclass(frozen=True, slots=True)
class Start:
    kernels: str  # cold, or cached
    seconds: float
    phases: dict[str, float]

    @classmethod
    def read(cls, kernels: str, line: str) -> "Start | None":
        """From a line of an engine's log, where that says it."""
        found = TOLD.search(line)
        if found is None:
            return None
        parts = (part.rpartition(" ")[0].rpartition(" ") for part in found[2].split(", "))
        return cls(kernels, float(found[1]), {name: float(took) for name, _, took in parts})


class NotStarted(Exception):
    """The engine ended; the message is what it said last."""


def main(argv: Sequence[str]) -> int:
    """Returns 1 when an engine did not start, 2 when its flags are wrong."""
    options = _parser().parse_args(argv)
    try:
        config = _config(options.more)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    from engine.bench.checkpoints import kept_checkpoint

    model = kept_checkpoint(options.cache, SHAPES[options.shape], options.format)
    with tempfile.TemporaryDirectory() as kernels:
        try:
            starts = [start(model, Path(kernels), how, options.more) for how in ("cold", "cached")]
        except NotStarted as error:
            sys.stderr.write(f"not reported: {error}\n")
            return 1
    device = "cpu" if config.device == Device.CPU else gpu_name() or "cpu"
    found = rows(starts, options.shape, options.format, members=config.tensor_parallel_size)
    report = Report(device, found, ["start", *argv], options.commit)
    print(report.table())
    members = config.tensor_parallel_size
    name = f"start-{options.shape}-{options.format}" + (f"-tp{members}" if members > 1 else "")
    print(report.write(options.out, name, versions()))
    return 0


def rows(starts: Sequence[Start], shape: str, fmt: str, *, members: int = 1) -> list[Row]:
    """Seconds of the whole and of each phase, for each start."""
    return [
        Row(
            bench="start", model=shape, format=fmt, rank=0, batch=0, adapters=0, context=0,
            metric=metric, value=seconds, unit="s", op=found.kernels, members=members,
        )
        for found in starts
        for metric, seconds in [("from nothing to serving", found.seconds), *found.phases.items()]
    ]  # fmt: skip


def start(model: Path, kernels: Path, how: str, more: Sequence[str]) -> Start:
    """Until it serves. Raises NotStarted."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "engine", "serve", "--model", str(model)]
        command += ["--listen", f"unix:{home}/engine.sock", "--adapter-store", f"{home}/adapters"]
        Path(home, "adapters").mkdir()
        environment = os.environ | {"TRITON_CACHE_DIR": str(kernels)}
        with subprocess.Popen(  # noqa: S603
            [*command, *more], stderr=subprocess.PIPE, env=environment, text=True
        ) as process:
            late = threading.Timer(START_S, process.kill)
            late.start()
            try:
                return _started(process, how)
            finally:
                late.cancel()
                _end(process)


def _started(process: subprocess.Popen[str], how: str) -> Start:
    assert process.stderr is not None
    said = list[str]()
    for line in process.stderr:
        said.append(line)
        if (found := Start.read(how, line)) is not None:
            return found
    raise NotStarted("".join(said[-SHOWN:]))


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _config(flags: Sequence[str]) -> EngineConfig:
    """Of an engine with these flags. Raises ConfigError; exits on wrong ones, as argparse does."""
    command = parse(["serve", "--model", "any", "--listen", "unix:any", *flags])
    assert isinstance(command, Serve)
    return command.config


def _parser() -> Parser:
    parser = Parser(
        prog="loratorio bench start", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--format", choices=FORMATS, default="awq")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "loratorio")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    parser.add_argument("more", nargs="*", metavar="-- FLAG", help="of the engine")
    return parser
