"""``loratorio bench start``: how long an engine takes from nothing to serving, phase by phase.

Starts one on a random checkpoint, twice: with an empty cache of kernels, then with what the first
left there. Whatever stands after ``--`` is handed to ``python -m engine serve``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.bench.shapes import FORMATS, SHAPES
from engine.flags import Parser

TOLD = re.compile(r"started in (\d+\.\d+) s: (.+)")  # see Timeline.tell
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
    parser = Parser(
        prog="loratorio bench start", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--format", choices=FORMATS, default="awq")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "loratorio")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("more", nargs="*", metavar="-- FLAG", help="of the engine")
    options = parser.parse_args(argv)
    model = _checkpoint(options.cache, options.shape, options.format)
    with tempfile.TemporaryDirectory() as kernels:
        try:
            starts = [start(model, Path(kernels), how, options.more) for how in ("cold", "cached")]
        except NotStarted as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
    print(json.dumps([asdict(s) for s in starts]) if options.json else table(starts))
    return 0


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
            try:
                return _started(process, how)
            finally:
                process.terminate()
                process.communicate(timeout=LEAVE_S)


def _started(process: subprocess.Popen[str], how: str) -> Start:
    assert process.stderr is not None
    said = list[str]()
    for line in process.stderr:
        said.append(line)
        if (found := Start.read(how, line)) is not None:
            return found
    raise NotStarted("".join(said[-SHOWN:]))


def table(starts: Sequence[Start]) -> str:
    """Phases a row, starts a column. What differs in name, as counts of kernels do, is apart."""
    phases = list(dict.fromkeys(phase for found in starts for phase in found.phases))
    rows = [(phase, [found.phases.get(phase) for found in starts]) for phase in phases]
    rows.append(("from nothing to serving", [found.seconds for found in starts]))
    width = max(len(name) for name, _ in rows)
    head = "".join(f"{found.kernels:>10}" for found in starts)
    lines = [
        f"{name:{width}}" + "".join(f"{'' if t is None else f'{t:.2f} s':>10}" for t in took)
        for name, took in rows
    ]
    return "\n".join([" " * width + head, *lines])


def _checkpoint(cache: Path, shape: str, fmt: str) -> Path:
    folder = cache / f"{shape}-{fmt}"
    if not (folder / "config.json").is_file():
        from engine.bench.checkpoints import CheckpointWriter

        CheckpointWriter(SHAPES[shape], fmt).write(folder)
    return folder
