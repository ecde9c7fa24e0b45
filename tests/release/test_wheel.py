"""The wheel, in an environment with nothing else: installed as people do, it serves.

``make test-wheel`` names where that environment lies in WHEEL; without it there is none.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.e2e.server import free_ports
from tests.release.test_release import ROOT, VERSION

PLACE = os.environ.get("WHEEL")
START_SECONDS = 600.0
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PLACE is None, reason="make test-wheel runs these"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*built, str(ROOT)], check=True, timeout=600, env=clean())
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def programs(wheel: Path) -> Path:
    """Of a fresh environment; its packages come from wherever pip finds them."""
    place = Path(PLACE or "").expanduser().resolve()
    venv.create(place, with_pip=True, clear=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet"]
    asked = [*pip, f"{wheel}[gateway,engine]"]
    subprocess.run(asked, check=True, timeout=3600, env=clean(), cwd=place)
    return place / "bin"


def clean() -> dict[str, str]:
    """An environment in which our checkout is nowhere to be found, also not by pip."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_it_says_which_release_it_is(wheel: Path, programs: Path, tmp_path: Path):
    assert wheel.name.startswith(f"loratorio-{VERSION}-py3")
    ran = subprocess.run(
        [programs / "loratorio", "--version"],
        cwd=tmp_path, env=clean(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == f"loratorio {VERSION}"


def test_it_serves_the_demo(programs: Path, tmp_path: Path):
    """From a folder that is no checkout: the model is made, adapters added, a chat answered."""
    port, metrics_port = free_ports(2)
    ready = tmp_path / "ready.json"
    flags = ["--demo", f"--port={port}", f"--metrics-port={metrics_port}"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [programs / "loratorio", "serve", *flags, "--data-dir", tmp_path / "data",
             "--ready-file", ready],
            cwd=tmp_path, env=clean(), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        told = json.loads(ready.read_text())
        tenant = told["tenants"][0]
        for model in tenant["models"]:
            asked = {"model": model, "max_tokens": 4,
                     "messages": [{"role": "user", "content": "Hello"}]}  # fmt: skip
            request = urllib.request.Request(
                f"{told['base_url']}/chat/completions",
                json.dumps(asked).encode(),
                {"authorization": f"Bearer {tenant['api_key']}",
                 "content-type": "application/json"},
            )  # fmt: skip
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] >= 1
    finally:
        server.terminate()
        server.wait(90)
