"""Side environments: a Python with what one requirements file says, made once and kept."""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path


def environment(requirements: Path, cache: Path, *, python: str | None = None) -> Path:
    """Its interpreter, after installing what is needed if it is not there.

    ``python``: whose environment it is, where it needs another than ours.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    place = cache / f"{requirements.stem}-{digest}"
    interpreter = place / "bin" / "python"
    if not (place / "ready").exists():
        sys.stderr.write(f"{requirements.stem}: installing {requirements.name} in {place}\n")
        shutil.rmtree(place, ignore_errors=True)
        if python is None:
            venv.create(place, with_pip=True)
        else:
            subprocess.run([python, "-m", "venv", str(place)], check=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [interpreter, "-m", "pip", "install", *quiet, "-r", str(requirements)], check=True
        )
        (place / "ready").touch()
    return interpreter
