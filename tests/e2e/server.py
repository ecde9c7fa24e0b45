"""A real ``loratorio serve`` in a process of its own, and what it says about itself."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from openai import OpenAI

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0  # the first start makes the demo model
STOP_SECONDS = 60.0


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ones: asked for one after the other, they may be the same."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway.cli.main", *arguments]


def environment() -> dict[str, str]:
    """Of a server as people start it: a worker's bound on threads is not for it."""
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def loratorio(*arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


# What a test does not say of sampling is as OpenAI has it: long answers are long, draws vary.
PLAIN = ("--generation-config", "vllm")


@dataclass
class Server:
    """Started by entering, stopped by leaving. ``ready`` is the ready file's content."""

    data_dir: Path
    flags: tuple[str, ...] = ("--demo", *PLAIN)
    ready: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.data_dir / "serve.log").read_text("utf-8", "replace")

    def __enter__(self) -> Self:
        ready_file = self.data_dir / "ready.json"
        ready_file.unlink(missing_ok=True)
        port, metrics_port = free_ports(2)
        arguments = command(
            *("serve", *self.flags, "--port", str(port)),
            *("--metrics-port", str(metrics_port), "--data-dir", str(self.data_dir)),
            *("--ready-file", str(ready_file)),
        )
        with (self.data_dir / "serve.log").open("wb") as log:
            self.process = subprocess.Popen(
                arguments, cwd=ROOT, stdout=log, stderr=log, env=environment()
            )
        if not eventually(lambda: ready_file.exists() or self.ended, START_SECONDS):
            self.__exit__()
            raise TimeoutError(f"not ready within {START_SECONDS:g} s:\n{self.log}")
        assert ready_file.exists(), self.log
        self.ready = json.loads(ready_file.read_text("utf-8"))
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        if not self.ended:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def base(self) -> str:
        name: str = self.ready["base_model"]
        return name

    def tenant(self, index: int) -> dict[str, Any]:
        tenant: dict[str, Any] = self.ready["tenants"][index]
        return tenant

    def adapters(self, index: int) -> list[str]:
        return [model for model in self.tenant(index)["models"] if model != self.base]

    def client(self, index: int = 0, *, key: str | None = None, **options: Any) -> OpenAI:
        """The official client as one tenant; no retries, so that each answer is seen."""
        chosen = self.tenant(index)["api_key"] if key is None else key
        settings = {"max_retries": 0, "timeout": 120.0} | options
        return OpenAI(base_url=self.ready["base_url"], api_key=chosen, **settings)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all label sets that contain the given labels."""
        total, found = 0.0, False
        for line in self.metrics().splitlines():
            match = re.match(rf"{re.escape(name)}(?:{{(.*)}})? (\S+)", line)
            if match and all(f'{k}="{v}"' in (match[1] or "") for k, v in labels.items()):
                total, found = total + float(match[2]), True
        assert found, f"no metric {name} {labels}"
        return total

    def metrics(self) -> str:
        with urllib.request.urlopen(self.ready["metrics_url"], timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def pid_of(self, program: str) -> int:
        """Process id of the ``engine`` or the ``gateway`` under this supervisor."""
        assert self.process is not None
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == self.process.pid and program.encode() in words:
                return int(entry.name)
        raise LookupError(f"no {program} runs")

    def kill(self, program: str) -> None:
        os.kill(self.pid_of(program), signal.SIGKILL)
