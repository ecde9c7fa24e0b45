"""The machine and the data directory: GPU, disk, who may read what is secret."""

import shutil
import stat
import subprocess
from collections.abc import Iterator

from gateway.checkup.finding import Finding, bad, good, warning
from gateway.config import DataDir

GIB = 1 << 30
LEAST_FREE, LITTLE_FREE = GIB, 10 * GIB
SMI_SECONDS = 20.0
ASKED = "name,memory.total,memory.used,driver_version,ecc.errors.uncorrected.volatile.total"


def gpu(program: str = "nvidia-smi") -> Iterator[Finding]:
    """By NVIDIA's own tool: no tensor library is loaded for it."""
    path = shutil.which(program)
    if path is None:
        yield warning(
            "gpu",
            f"no {program}: the engine computes on the CPU",
            "on a machine with a GPU, install its driver, or give the container its devices",
        )
        return
    try:
        done = subprocess.run(  # noqa: S603
            [path, f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield bad(
            "gpu",
            f"{program} does not answer: {type(error).__name__}",
            "restart the driver or the machine",
        )
        return
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        yield bad(
            "gpu",
            f"{program} failed and said: {lines[0][:120]}",
            "see that driver and kernel fit, and that the container has the devices",
        )
        return
    for number, line in enumerate(done.stdout.splitlines()):
        name, total, used, driver, errors = (part.strip() for part in line.split(","))
        said = f"{name}, {used} of {total} MiB used, driver {driver}"
        if errors.isdigit() and int(errors):
            yield bad(
                f"gpu {number}",
                f"{said}, {errors} uncorrected memory errors",
                "drain its engine and reset or replace the GPU",
            )
        else:
            yield good(f"gpu {number}", said)


def data_dir(files: DataDir) -> Iterator[Finding]:
    """Room, and that secrets are their owner's alone."""
    root = files.root
    free = shutil.disk_usage(root).free
    said = f"{free / GIB:.1f} GiB free in {root}"
    if free < LEAST_FREE:
        yield bad("disk", said, "make room: without it no usage is recorded and nothing is served")
    elif free < LITTLE_FREE:
        yield warning("disk", said, "make room for adapters, files and the usage log")
    else:
        yield good("disk", said)
    for secret in (files.pepper, files.webhook_secret, root / "keys.json"):
        if secret.exists() and stat.S_IMODE(secret.stat().st_mode) & 0o077:
            yield bad("secrets", f"{secret} can be read by others", f"chmod 600 {secret}")
    if not files.pepper.exists():
        yield warning(
            "pepper",
            f"no {files.pepper}",
            "keys are hashed with it: bring it back, or give every gateway the same one",
        )
    else:
        yield good("pepper", "is there; see that a backup has it")
