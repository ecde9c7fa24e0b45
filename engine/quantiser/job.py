"""What GPTQModel is asked to do, and the program that does it.

GPTQModel pins versions that an engine need not have, so it runs in a process of its own, by
whatever Python has it; ``worker.py`` is all of ours that it needs there.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.errors import EngineError

WORKER = Path(__file__).with_name("worker.py")
EXTRA = "pip install 'loratorio[quantize]'"
SETTINGS = {
    "GPTQMODEL_CPU_WORKERS": "2",  # it asks for two on a machine that has one to spare
    "GPTQMODEL_DISABLE_PACK_EXT": "1",  # its packer in C++ takes a minute to compile
    "HF_HUB_OFFLINE": "1",  # everything is here
    "TOKENIZERS_PARALLELISM": "false",
}
LAST_LINES = 15


class QuantiserMissing(EngineError):
    """No Python was named that has GPTQModel."""


class QuantiserFailed(EngineError):
    """GPTQModel did not write a checkpoint; the message ends with what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    model: str  # directory of the dense checkpoint
    out: str
    method: str  # "gptq" or "awq"
    bits: int
    group: int  # -1: whole columns
    symmetric: bool
    act_order: bool
    calibration: list[list[int]]  # token ids of each sequence
    batch: int = 4


def require(python: str) -> None:
    """Raises QuantiserMissing."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('gptqmodel') is None)"
    try:
        done = subprocess.run([python, "-c", code], check=False, capture_output=True)  # noqa: S603
    except OSError as error:
        raise QuantiserMissing(f"--python {python}: {error.strerror}") from error
    if done.returncode:
        raise QuantiserMissing(
            f"{python} has no gptqmodel; run `{EXTRA}`, best in an environment of its own that"
            " --python names"
        )


def run(job: Job, *, python: str, log: Path) -> None:
    """Minutes. What GPTQModel says goes to ``log``. Raises QuantiserFailed."""
    with tempfile.TemporaryDirectory(prefix="quantise-") as scratch:
        order = Path(scratch) / "job.json"
        order.write_text(json.dumps(asdict(job)))
        with log.open("w") as output:
            done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
                [python, str(WORKER), str(order)],
                cwd=scratch,  # GPTQModel leaves a folder of logs where it runs
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(os.environ),
                check=False,
            )
    if done.returncode:
        tail = log.read_text("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
        sys.stderr.write("\n".join(tail) + "\n")
        last = tail[-1] if tail else f"exit code {done.returncode}"
        raise QuantiserFailed(f"GPTQModel failed: {last[:300]} (all of it: {log})")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Ours must not shadow what the other Python has installed."""
    return {k: v for k, v in given.items() if k != "PYTHONPATH"} | SETTINGS
