"""Benchmark results: rows of facts, the stored figures of peers, and where files go.

A row is one measured number with everything needed to measure it again. Peers' figures come with
their own version, device and date, and are compared only on the same device.
"""

import json
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path

KEY = "--api-key"
Found = tuple[str, float, str]  # metric, value, unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    bench: str
    model: str
    format: str
    rank: int
    batch: int
    adapters: int
    context: int
    metric: str
    value: float
    unit: str
    op: str = ""
    peer: str = ""
    peer_value: float | None = None
    floor: float | None = None
    head: str = ""  # type of the output layer; "": as stored
    members: int = 1  # devices that compute together
    kv: str = ""  # type of keys and values in pages; "": as the model computes
    lora: str = ""  # codes that adapters are kept in; "": as the model computes

    @property
    def key(self) -> tuple[str, str, str, int, int, str, str]:
        return (
            self.bench, self.model, self.format, self.batch, self.adapters, self.metric, self.op,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The best stored figure of another engine for the same work on the same device."""

    name: str
    value: float


def best_peers(gpu: str) -> dict[tuple[str, str, str, int, int, str, str], Peer]:
    """Best peer figure by ``Row.key`` for a device name such as ``NVIDIA H200``."""
    stored = json.loads((resources.files("engine.bench") / "peers_h200.json").read_text())
    best: dict[tuple[str, str, str, int, int, str, str], Peer] = {}
    for entry in stored:
        if entry["gpu"] != gpu:
            continue
        key = (
            entry["bench"], entry["model"], entry["format"], entry["batch"],
            entry.get("adapters", 0), entry["metric"], entry.get("op", ""),
        )  # fmt: skip
        found = Peer(name=entry["peer"], value=entry["value"])
        known = best.get(key)
        higher_is_better = entry["unit"].endswith("/s")
        if known is None or (found.value > known.value) == higher_is_better:
            best[key] = found
    return best


@dataclass(slots=True)
class Report:
    """Collects the rows of one command and writes them beside what produced them."""

    device: str
    rows: list[Row] = field(default_factory=list)
    arguments: Sequence[str] = ()  # of ``loratorio bench``
    commit: str | None = None  # None: the checkout's

    def write(self, folder: Path, name: str, versions: dict[str, str]) -> Path:
        """``folder/<device>/<name>.json``: a list of rows, each with commit, command and date."""
        about = {
            "commit": self.commit or commit(),
            "command": shlex.join(["loratorio", "bench", *_shown(self.arguments)]),
            "date": datetime.now(UTC).date().isoformat(),
            "device": self.device,
            "python": platform.python_version(),
            "versions": versions,
        }
        path = folder / self.device.lower().replace("nvidia ", "").replace(" ", "-")
        path.mkdir(parents=True, exist_ok=True)
        file = path / f"{name}.json"
        file.write_text(json.dumps([asdict(row) | about for row in self.rows], indent=1) + "\n")
        return file

    def table(self) -> str:
        """Ours, the best peer, the floor and the ratios, one line a row."""
        labels = [_label(row) for row in self.rows]
        width = max(map(len, labels), default=0)
        head = (
            f"{'':{width}}{'ours':>12}{'peer':>12}{'ours/peer':>11}{'floor':>10}{'ours/floor':>12}"
        )
        named = zip(labels, self.rows, strict=True)
        return "\n".join([head, *(f"{label:{width}}{_numbers(row)}" for label, row in named)])


def _label(row: Row) -> str:
    batch = f", {row.batch} x {row.adapters} adapters" if row.batch else ""
    return f"{' '.join(f'{row.bench} {row.op} {row.metric}'.split())}{batch}, {row.unit}"


def _numbers(row: Row) -> str:
    peer = f"{row.peer_value:.4g}" if row.peer_value is not None else "-"
    to_peer = f"{row.value / row.peer_value:.2f}" if row.peer_value else "-"
    floor = f"{row.floor:.4g}" if row.floor is not None else "-"
    to_floor = f"{row.value / row.floor:.2f}" if row.floor else "-"
    return f"{row.value:>12.4g}{peer:>12}{to_peer:>11}{floor:>10}{to_floor:>12}"


def _shown(arguments: Sequence[str]) -> list[str]:
    """Without the value of a key."""
    found, secret = [], False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        found.append("..." if secret else f"{flag}=..." if equals and flag == KEY else argument)
        secret = argument == KEY
    return found


def commit() -> str:
    """The checkout's short commit, ``-dirty`` when it has changes, or ``unknown``."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],  # noqa: S607
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def gpu_name() -> str | None:
    """The GPU of this machine by its driver, which no process has to open the device for."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    return ran.stdout.partition("\n")[0].strip() or None


def versions() -> dict[str, str]:
    """Of what computes, as it is installed."""
    return {name: metadata.version(name) for name in ("torch", "triton")}
