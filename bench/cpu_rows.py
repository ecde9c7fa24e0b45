"""Rows of the CPU benchmarks: what machine, what versions, where they go."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from engine.bench.rows import Row, commit

RESULTS = Path(__file__).parent / "results" / "cpu"
FEATURES = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX"}


def device() -> str:
    """For example ``Intel(R) Xeon(R) Processor, 2 cores, AVX512-BF16, AMX``."""
    facts = _cpu_facts()
    flags = facts.get("flags", "").split()
    found = [name for flag, name in FEATURES.items() if flag in flags]
    model = facts.get("model name") or platform.processor() or platform.machine()
    return ", ".join([model, f"{len(os.sched_getaffinity(0))} cores", *found])


def _cpu_facts() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def write(rows: Sequence[Row], name: str, packages: Sequence[str], folder: Path = RESULTS) -> Path:
    """``folder/<name>.json``: the rows, each with commit, command, date, device and versions."""
    about = {
        "commit": commit(),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "device": device(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps([asdict(row) | about for row in rows], indent=1) + "\n")
    return path


def read(name: str, folder: Path = RESULTS) -> list[dict[str, object]]:
    """Stored rows of a benchmark; none when it was not run."""
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    rows: list[dict[str, object]] = json.loads(path.read_text())
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'':52}{'value':>10} {'unit':10}{'peer':>10}{'ratio':>8}"]
    for row in rows:
        peer = f"{row.peer_value:10.4g}" if row.peer_value else f"{'':>10}"
        ratio = f"{row.value / row.peer_value:8.2f}" if row.peer_value else ""
        lines.append(f"{_label(row):52}{row.value:10.4g} {row.unit:10}{peer}{ratio}")
    return "\n".join(lines)


def _label(row: Row) -> str:
    streams = f"{row.batch} stream{'s' if row.batch > 1 else ''}"
    adapters = f", {row.adapters} adapters" if row.adapters else ""
    return f"{row.bench}, {row.format}, {streams}{adapters}: {row.metric}"


def _module() -> str:
    """That is run: ``bench.cpu`` or ``bench.gateway.soak``, or the package of a ``__main__``."""
    folders, file = Path(sys.argv[0]).resolve().parts[:-1], Path(sys.argv[0])
    packages = folders[len(Path(__file__).resolve().parts) - 2 :]
    return ".".join([*packages, *([] if file.stem == "__main__" else [file.stem])])
