"""Side environments: a Python with what one requirements file says, made once and kept."""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path


def environment(requirements: Path, cache: Path) -> Path:
    """Its interpreter, after installing what is needed if it is not there."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    place = cache / f"{requirements.stem}-{digest}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        sys.stderr.write(f"{requirements.stem}: installing {requirements.name} in {place}\n")
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [python, "-m", "pip", "install", *quiet, "-r", str(requirements)], check=True
        )
        (place / "ready").touch()
    return python
