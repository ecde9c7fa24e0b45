"""What can be known to be wrong before anything is started: each in one sentence."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from gateway.cli.serve_options import ServeOptions

LOCK_SECONDS = 10.0  # a server that was just killed may still be draining
CLAIMS = ("quantization_config", "compression_config")  # keys of config.json
CLAIM_FILES = ("quantize_config.json", "quant_config.json", "quantization_config.json")
METHODS = {  # other words of checkpoints
    "fbgemm_fp8": "fp8",
    "auto_round": "auto-round",
    "intel/auto-round": "auto-round",
}


class CannotServe(Exception):
    """Nothing can be served this way; the message says what to change."""


def check(options: ServeOptions) -> None:
    """Raise CannotServe for the first thing that cannot work."""
    make_data_dir(options.data_dir)
    if options.ready_file and not options.ready_file.resolve().parent.is_dir():
        raise CannotServe(f"--ready-file {options.ready_file}: its directory does not exist")
    if options.model:
        check_checkpoint(options.model, options.quantization)
    for module in options.lora_modules:
        if not (module.path / "adapter_config.json").is_file():
            raise CannotServe(
                f"--lora-modules {module.name}: {module.path} holds no adapter_config.json"
            )


def make_data_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CannotServe(f"--data-dir {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise CannotServe(f"--data-dir {path} is not writable")


def check_checkpoint(path: Path, quantization: str) -> None:
    """The directory looks like a checkpoint, stored as ``--quantization`` says if it says so."""
    if not path.is_dir():
        raise CannotServe(
            f"--model {path} is not a directory; models are read from disk, nothing is downloaded"
        )
    try:
        config = json.loads((path / "config.json").read_text("utf-8"))
    except FileNotFoundError as error:
        raise CannotServe(f"--model {path} holds no config.json") from error
    except (OSError, ValueError) as error:
        raise CannotServe(f"--model {path}: config.json cannot be read: {error}") from error
    if not any(path.glob("*.safetensors")):
        raise CannotServe(f"--model {path} holds no *.safetensors")
    if not isinstance(config, dict):
        raise CannotServe(f"--model {path}: config.json is not a JSON object")
    stored = "none" if quantization == "auto" else _stored_method(path, config)
    if quantization not in ("auto", stored):
        raise CannotServe(f"--quantization {quantization}, but {path} is stored as {stored}")


def _stored_method(path: Path, config: dict[str, object]) -> str:
    """What the first of the claims that a checkpoint may carry calls its method."""
    claims = [config.get(key) for key in CLAIMS]
    for name in CLAIM_FILES:
        with contextlib.suppress(OSError, ValueError):  # the engine says what is wrong with it
            claims.append(json.loads((path / name).read_text("utf-8")))
    claim = next((claim for claim in claims if isinstance(claim, dict) and claim), None)
    if claim is None:
        return "none"
    unnamed = "awq" if "zero_point" in claim or "w_bit" in claim else "gptq"
    method = str(claim.get("quant_method") or unnamed).lower()
    return METHODS.get(method, method)


def free_port(host: str, port: int, flag: str) -> int:
    """The port itself if it can be bound, or any free one for 0. Raises CannotServe."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CannotServe(f"{flag} {port} on {host}: {error.strerror}") from error
        chosen: int = probe.getsockname()[1]
        return chosen


@contextlib.contextmanager
def hold_data_dir(path: Path) -> Iterator[int]:
    """One server per data directory: yields the lock's descriptor.

    Programs that inherit it keep the lock until they too have ended. Raises CannotServe.
    """
    descriptor = os.open(path / "serve.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise CannotServe(f"--data-dir {path} is in use by another server")
            time.sleep(0.1)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
