"""Makes the packers' environments, and has each packer write its fixtures in its own.

    python -m tests.compat.environments CACHE [--keep]

Environments lie in CACHE and are made once for what their requirements say; what the packers
write goes to CACHE/written. ``--keep`` makes that the committed fixtures. Needs only Python.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.environments import environment

HERE = Path(__file__).parent
FIXTURES = HERE / "fixtures"
PACKERS = (
    "auto-gptq",
    "autoawq",
    "gptqmodel",
    "compressed-tensors",
    "compressed-tensors-act-order",
)
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",  # what is written must not depend on the machine
    "HF_HUB_OFFLINE": "1",
    "GPTQMODEL_CPU_WORKERS": "2",  # it asks for two on a machine that has one to spare
    "GPTQMODEL_DISABLE_PACK_EXT": "1",  # its packer in C++ takes a minute to compile
}


def packers_python(packer: str, cache: Path) -> Path:
    return environment(HERE / "requirements" / f"{packer}.txt", cache)


def write(packer: str, cache: Path, out: Path) -> None:
    script = HERE / f"pack_{packer.replace('-', '_')}.py"
    log = cache / f"{packer}.log"
    with log.open("w") as output:
        done = subprocess.run(
            [packers_python(packer, cache), str(script), str(out.resolve())],
            cwd=cache,  # GPTQModel leaves a folder of logs where it runs
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | SETTINGS,
        )
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    sys.stderr.write(f"{' '.join(last)}\n")
    if done.returncode:
        raise SystemExit(f"{packer}: {script.name} failed; see {log}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write fixtures with the original packers.")
    parser.add_argument("cache", type=Path)
    parser.add_argument("--keep", action="store_true", help="make them the committed fixtures")
    options = parser.parse_args()
    cache = options.cache.expanduser().resolve()
    cache.mkdir(parents=True, exist_ok=True)
    out = cache / "written"
    shutil.rmtree(out, ignore_errors=True)
    for packer in PACKERS:
        write(packer, cache, out)
    if options.keep:
        shutil.rmtree(FIXTURES, ignore_errors=True)
        for packer in PACKERS:
            shutil.copytree(out / packer, FIXTURES / packer)


if __name__ == "__main__":
    main()
