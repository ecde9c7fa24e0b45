"""An adapter's life with the real engine: inspected, pushed, tried, used by the next request."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.e2e.server import ROOT, Server, command, loratorio

DEMO = ROOT / "engine" / "demo" / "adapters"


@pytest.fixture(autouse=True)
def _withdrawn(server: Server) -> Iterator[None]:
    """The server is shared: a project's models are then what they were."""
    yield
    client = server.client(0)
    pushed = {model.id for model in client.models.list()} - {server.base, *server.adapters(0)}
    for name in sorted(pushed, key=lambda each: each != "prod"):
        path = f"/adapters/aliases/{name}" if name == "prod" else f"/adapters/{name}"
        client.delete(path, cast_to=type(None))


def push(server: Server, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {
        "LORATORIO_API_KEY": server.tenant(0)["api_key"],
        "XDG_CACHE_HOME": str(home),
    }
    return subprocess.run(
        command("adapter", "push", *arguments, "--url", server.ready["base_url"], "--json"),
        cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ | settings,
    )  # fmt: skip


def test_a_pushed_adapter_answers_the_very_next_request(server, tmp_path):
    pushed = push(server, tmp_path, str(DEMO / "json"), "--name", "forms", "--alias", "prod")
    assert pushed.returncode == 0, pushed.stderr
    answer = server.client(0).chat.completions.create(
        model="prod",
        messages=[{"role": "user", "content": "What is the capital of Italy?"}],
        temperature=0,
        max_tokens=40,
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"answer", "words"}
    told = json.loads(pushed.stdout)
    assert told["model"] == "forms@1"
    assert 0 < float(told["mean_kl"]) < 1e-2


def test_an_adapter_that_changes_nothing_is_published_with_a_warning(server, tmp_path):
    folder = tmp_path / "nothing"
    folder.mkdir()
    tensors = load_file(DEMO / "json" / "adapter_model.safetensors")
    zeroed = {name: t * (0 if "lora_B" in name else 1) for name, t in tensors.items()}
    save_file(zeroed, folder / "adapter_model.safetensors")
    config = (DEMO / "json" / "adapter_config.json").read_bytes()
    (folder / "adapter_config.json").write_bytes(config)
    pushed = push(server, tmp_path, str(folder))
    assert pushed.returncode == 0, pushed.stderr
    assert "on the probe this adapter answers as the base does" in pushed.stderr


def test_the_demo_says_of_itself_that_it_is_served(server):
    model = server.data_dir / "demo" / server.base
    found = loratorio("inspect", str(DEMO / "bullets"), "--base", str(model), timeout=300)
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "served: yes")
