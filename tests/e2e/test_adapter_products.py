"""An adapter's life with the real engine: inspected, pushed, tried, used by the next request."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
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


def test_an_activated_adapter_goes_on_from_what_the_base_computed(server, tmp_path):
    """It acts from the turn it answers in: all before that is the base's."""
    folder, client = tmp_path / "turns", server.client(0)
    folder.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (folder / name).write_bytes((DEMO / "json" / name).read_bytes())
    settings = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    said = {"model": server.base, "prompt": "<|im_start|>assistant\n", "add_special_tokens": False}
    root = server.ready["base_url"].removesuffix("/v1")
    tokens = client.post(f"{root}/tokenize", body=said, cast_to=dict[str, Any])["tokens"]
    settings["alora_invocation_tokens"] = tokens
    (folder / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    pushed = push(server, tmp_path, str(folder))
    assert pushed.returncode == 0, pushed.stderr

    def ask(model: str) -> Any:
        words = "Of all the fruits that grow in the garden behind the old house, " * 12
        return client.chat.completions.create(
            model=model, temperature=0, max_tokens=16,
            messages=[{"role": "user", "content": f"{words} which is red?"}],
        )  # fmt: skip

    plain, active, again = ask(server.base), ask("turns"), ask("turns")
    before = plain.usage.prompt_tokens - len(tokens)
    assert active.usage.prompt_tokens_details.cached_tokens == before // 64 * 64 > 64
    assert active.choices[0].message.content == again.choices[0].message.content
    assert active.choices[0].message.content != plain.choices[0].message.content


@pytest.mark.parametrize("parts", [False, True], ids=["multipart", "parts"])
def test_an_upload_takes_no_more_memory_the_larger_it_is(server, tmp_path, parts):
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes((DEMO / "json/adapter_config.json").read_bytes())
    large = np.zeros((1 << 25,), np.float32)  # twice what may be held
    save_file({"of.nothing": large}, folder / "adapter_model.safetensors")
    gateway = Path(f"/proc/{server.pid_of('gateway')}")
    (gateway / "clear_refs").write_text("5")  # the most so far is what it is now
    before = resident(gateway, "VmRSS")
    if parts:
        assert "of.nothing" in push(server, tmp_path, str(folder)).stderr
    else:
        key = {"Authorization": f"Bearer {server.tenant(0)['api_key']}"}
        with ExitStack() as stack:
            files = [
                ("files", (path.name, stack.enter_context(path.open("rb"))))
                for path in sorted(folder.iterdir())
            ]
            answer = httpx2.post(
                f"{server.ready['base_url']}/adapters", headers=key, data={"name": "large"},
                files=files, timeout=300,
            )  # fmt: skip
        assert (answer.status_code, "of.nothing" in answer.text) == (422, True)
    assert resident(gateway, "VmHWM") - before < 64 << 20


def resident(process: Path, field: str) -> int:
    """Bytes; ``process``: its directory under /proc."""
    lines = (process / "status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def test_the_demo_says_of_itself_that_it_is_served(server):
    model = server.data_dir / "demo" / server.base
    found = loratorio("inspect", str(DEMO / "bullets"), "--base", str(model), timeout=300)
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "served: yes")
