"""Engines and gateways as processes of their own, set up as docs/fleet.md says, with TLS between
all of them; a small checkpoint of random weights, so that engines start quickly."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from openai import OpenAI

from adapters.base_spec import BaseSpec
from gateway.cli.child import die_with_parent
from gateway.cli.prepare import write_base_spec
from gateway.config import Settings
from gateway.identity.service import KeyTerms
from tests.adapters.builders import config, write_adapter
from tests.certificates import Authority, Pair
from tests.e2e.server import ROOT, START_SECONDS, STOP_SECONDS, environment, eventually, free_ports
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.gateway.serving import build_model_dir
from tests.gateway.test_canary import MODULES, factors
from tests.stack import tenant_in

BASE = "small"
CONTEXT = 4096  # tokens


def page(port: int) -> str:
    """Of metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@dataclass
class Process:
    """One program; its output goes to ``log``."""

    arguments: list[str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                cwd=ROOT, stdout=log, stderr=log, env=environment(),
                preexec_fn=die_with_parent(signal.SIGKILL),
            )  # fmt: skip

    def send(self, number: int) -> None:
        assert self.running is not None
        self.running.send_signal(number)

    def ended(self) -> int:
        """What it exited with, once it has."""
        assert self.running is not None
        return self.running.wait(STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.running is not None and self.running.poll() is None:
            self.running.kill()
            self.running.wait(STOP_SECONDS)


@dataclass
class Fleet:
    """Two gateways, and engines ``a`` and ``b``; entered once."""

    folder: Path
    database_url: str
    redis_url: str
    engines: dict[str, Process] = field(default_factory=dict)
    gateways: list[Process] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)  # of the settings
    key: str = ""

    def __post_init__(self) -> None:
        self.model = build_model_dir(self.folder / "model")
        vocabulary = json.loads((self.model / "tokenizer.json").read_bytes())["model"]["vocab"]
        shape = Shape(vocab=len(vocabulary) + 3, positions=CONTEXT)
        write_checkpoint(self.model, shape, Layout("gptq", 32))
        settings = config(
            target_modules=list(MODULES), lora_alpha=8, base_model_name_or_path=self.model.name
        )
        base = BaseSpec.from_checkpoint(self.model)
        self.adapter = write_adapter(self.folder / "adapter", settings, factors(base))
        self.ports = dict(zip(("a", "b", "a metrics", "b metrics"), free_ports(4), strict=True))
        self._authority = Authority(self.folder)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for number in range(2):
                self.files.append(self._settings(number))
                self.settings.append(Settings.from_json(self.files[-1].read_bytes()))
                write_base_spec(self.model, self.settings[-1].base_spec_file)
            _, self.key = asyncio.run(tenant_in(self.settings[0], KeyTerms()))
            for name in ("a", "b"):
                self.engines[name] = stack.enter_context(self.engine(name))
            for number, file in enumerate(self.files):
                arguments = ["gateway", "serve", "--settings", str(file)]
                log = self.folder / f"gateway-{number}.log"
                self.gateways.append(stack.enter_context(Process(arguments, log)))
            self._stack = stack.pop_all()
        self.until_up(2)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def engine(self, name: str, *flags: str) -> Process:
        """Not started yet; again under the same name, it goes on with the same data."""
        pair = self._certificate(f"engine-{name}")
        arguments = [
            "engine", "serve", "--model", self.model, "--name", name, "--served-model-name", BASE,
            "--listen", f"tls:127.0.0.1:{self.ports[name]}", "--register", self.redis_url,
            "--ssl-certfile", pair.certificate, "--ssl-keyfile", pair.key,
            "--ssl-ca-certs", self._authority.file,
            "--adapter-store", self.folder / "adapters", "--data-dir", self.folder / name,
            "--metrics-port", self.ports[f"{name} metrics"], "--handoff-listen", "tls:127.0.0.1:0",
            "--device", "cpu", "--dtype", "float32", "--threads", 1, "--max-num-seqs", 8,
            "--pool-bytes", 64 << 20, *flags,
        ]  # fmt: skip
        return Process([str(word) for word in arguments], self.folder / f"engine-{name}.log")

    def _certificate(self, name: str) -> Pair:
        return self._authority.issue(name)

    def _settings(self, number: int) -> Path:
        """A gateway's own directory has in it what all share: adapters, and files of tenants."""
        pair, (port, metrics_port) = self._certificate(f"gateway-{number}"), free_ports(2)
        data = self.folder / f"gateway-{number}"
        data.mkdir()
        for shared in ("adapters", "files"):
            (self.folder / shared).mkdir(exist_ok=True)
            (data / shared).symlink_to(self.folder / shared)
        said = {
            "data_dir": str(data), "model_dir": str(self.model), "served_model_name": BASE,
            "engines": ["redis:"], "database_url": self.database_url, "redis_url": self.redis_url,
            "pepper": "ab" * 32, "port": port, "metrics_port": metrics_port,
            "engine_ssl_ca_certs": str(self._authority.file),
            "engine_ssl_certfile": str(pair.certificate), "engine_ssl_keyfile": str(pair.key),
        }  # fmt: skip
        file = self.folder / f"gateway-{number}.json"
        file.write_text(json.dumps(said))
        return file

    def client(self, number: int) -> OpenAI:
        """Of one gateway. No retries, so that each answer is seen."""
        url = f"http://127.0.0.1:{self.settings[number].port}/v1"
        return OpenAI(base_url=url, api_key=self.key, max_retries=0, timeout=STOP_SECONDS)

    def _up(self, number: int) -> int:
        """Engines that a gateway says it uses; none while it starts."""
        try:
            port = self.settings[number].port
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
                return sum(engine["up"] for engine in json.load(answer)["engines"])
        except OSError:
            return 0

    def until_up(self, engines: int) -> None:
        """Every gateway uses so many."""
        found = eventually(lambda: self._up(0) == self._up(1) == engines, START_SECONDS)
        assert found, "\n".join(log.read_text()[-2000:] for log in self.folder.glob("*.log"))

    def metric(self, engine: str, name: str, **labels: str) -> float:
        """Of an engine's own page, summed over the series that have these labels; 0: none has."""
        said_now = page(self.ports[f"{engine} metrics"])
        series = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", said_now, re.MULTILINE)
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(value) for said, value in series if all(one in said for one in wanted))
