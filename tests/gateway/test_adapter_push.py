"""``loratorio adapter push``: parts, retries, resumption and refusals against a real server."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.cli.adapter_client import ATTEMPTS, AdapterClient, PushFailed
from gateway.cli.bundle import Bundle
from gateway.cli.main import main
from gateway.cli.progress import ByteBar
from gateway.cli.push import KEY_VARIABLE
from gateway.cli.pusher import Pusher
from gateway.listener import Listener
from tests.adapters.builders import config, lora, write_adapter
from tests.fakes.clock import until
from tests.gateway.adapter_world import World, adapter, opened

pytestmark = pytest.mark.slow

PART = 300  # bytes


class Line(httpx2.BaseTransport):
    """A network that may fail before a request leaves, or lose the answer to one."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.cut: Callable[[str, str], bool] = lambda method, path: False
        self.lost: Callable[[str, str], bool] = lambda method, path: False
        self._real = httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        method, path = request.method, request.url.path
        if self.cut(method, path):
            raise httpx2.ConnectError("no route to host")
        self.sent.append((method, path))
        answer = self._real.handle_request(request)
        if self.lost(method, path):
            answer.read()
            raise httpx2.ReadError("connection reset")
        return answer

    @property
    def parts(self) -> list[str]:
        return [
            path.rpartition("/uploads/")[2].partition("/")[2] for m, path in self.sent if m == "PUT"
        ]


class Client:
    """Pushes from another thread, as a program elsewhere would."""

    def __init__(self, world: World, port: int, memory: Path) -> None:
        self.world, self.url, self.memory = world, f"http://127.0.0.1:{port}", memory
        self.line, self.said = Line(), list[str]()

    async def push(self, folder: Path, name: str = "support", **form: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._push, folder, name, form)

    def _push(self, folder: Path, name: str, form: dict[str, Any]) -> dict[str, Any]:
        bundle = Bundle.of(folder, PART)
        with AdapterClient(
            self.url,
            self.world.keys["acme"],
            say=self.said.append,
            transport=self.line,
            sleep=lambda _: None,
        ) as client:
            bar = ByteBar(io.StringIO(), bundle.nbytes)
            pusher = Pusher(client, bundle, bar, memory=self.memory, sleep=lambda _: None)
            return pusher.push({"name": name, **form})


@asynccontextmanager
async def listening(world: World, tmp_path: Path) -> AsyncIterator[Client]:
    listener = Listener(world.application, "127.0.0.1", 0)
    serving = asyncio.create_task(listener.run_until_stopped())
    try:
        yield Client(world, listener.port, tmp_path / "memory" / "upload")
    finally:
        listener.should_exit = True
        await serving


@pytest.fixture
def backend() -> str:
    return "sqlite"  # it is the client that is tested


@pytest.fixture
async def client(database, tmp_path):
    async with opened(database, tmp_path / "data") as world, listening(world, tmp_path) as found:
        yield found


async def test_an_adapter_goes_up_in_parts_and_its_alias_moves(client, tmp_path):
    folder = adapter(tmp_path / "a")
    told = await client.push(folder, alias="prod")
    assert (told["model"], told["state"]) == ("support@1", "ready")
    assert told["report"]["modules"]
    assert await client.world.meaning("prod") == told["digest"]
    sizes = [file.stat().st_size for file in sorted(folder.iterdir())]
    assert len(client.line.parts) == sum(-(-size // PART) for size in sizes) > 4
    assert not client.memory.exists()
    await until(lambda: not client.world.leftovers)


async def test_a_broken_connection_costs_one_part(client, tmp_path):
    count = 0

    def third_is_cut(method: str, path: str) -> bool:
        nonlocal count
        count += method == "PUT"
        return method == "PUT" and count == 3

    def answer_is_lost(method: str, path: str) -> bool:
        return path.endswith("safetensors/3") and client.line.sent.count((method, path)) == 1

    client.line.cut, client.line.lost = third_is_cut, answer_is_lost
    told = await client.push(adapter(tmp_path / "a"))
    assert told["state"] == "ready"
    assert len(client.said) == 2
    assert "trying again" in client.said[0]
    again = [part for part in set(client.line.parts) if client.line.parts.count(part) > 1]
    assert again == ["adapter_model.safetensors/3"]


async def test_a_second_run_goes_on_where_the_first_was_stopped(client, tmp_path):
    folder = adapter(tmp_path / "a")
    client.line.cut = lambda method, path: path.endswith("safetensors/3")
    with pytest.raises(PushFailed, match="no route"):
        await client.push(folder)
    assert len(client.said) == ATTEMPTS - 1
    before = list(client.line.parts)
    assert before
    client.line.cut = lambda method, path: False
    client.line.sent.clear()
    assert (await client.push(folder))["model"] == "support@1"
    assert set(client.line.parts).isdisjoint(before)
    assert ("POST", "/v1/adapters/uploads") not in client.line.sent


async def test_an_upload_that_is_gone_is_begun_again(client, tmp_path):
    client.memory.parent.mkdir()
    client.memory.write_text("upl_" + "0" * 32)
    assert (await client.push(adapter(tmp_path / "a")))["state"] == "ready"


async def test_a_lost_answer_to_the_last_step_is_asked_for(client, tmp_path):
    client.line.lost = lambda method, path: (
        path.endswith("/complete") and client.line.sent.count((method, path)) == 1
    )
    assert (await client.push(adapter(tmp_path / "a")))["state"] == "ready"
    assert len(client.said) == 1


async def test_a_refusal_lists_every_reason(client, tmp_path):
    folder = adapter(tmp_path / "a", r=9, lora_alpha="x")
    with pytest.raises(PushFailed) as caught:
        await client.push(folder)
    assert any("lora_alpha" in problem for problem in caught.value.problems)
    assert not client.memory.exists()
    assert client.world.leftovers == []


async def test_a_file_that_changes_meanwhile_is_noticed(client, tmp_path):
    folder = adapter(tmp_path / "a")
    other = adapter(tmp_path / "b", seed=7)
    first = Bundle.of(folder, PART)
    (folder / "adapter_model.safetensors").write_bytes(
        (other / "adapter_model.safetensors").read_bytes()
    )
    assert Bundle.of(folder, PART).identity != first.identity

    def run() -> None:
        with AdapterClient(client.url, client.world.keys["acme"]) as api:
            bar = ByteBar(io.StringIO(), first.nbytes)
            Pusher(api, first, bar, memory=client.memory).push({"name": "support"})

    with pytest.raises(PushFailed, match="its parts hash to"):
        await asyncio.to_thread(run)


async def test_the_command_says_what_was_published_and_what_was_not(
    client, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(KEY_VARIABLE, client.world.keys["acme"])
    base = ["adapter", "push", "--url", client.url]
    folder = str(adapter(tmp_path / "sql"))
    assert await asyncio.to_thread(main, [*base, folder, "--alias", "prod", "--json"]) == 0
    told = capsys.readouterr()
    assert '"model": "sql@1"' in told.out
    assert "100%" in told.err
    assert await client.world.meaning("prod")
    wrong = str(write_adapter(tmp_path / "wrong", config(r=9), lora()))
    assert await asyncio.to_thread(main, [*base, wrong]) == 1
    assert "rank 9 by the config, 4 by its tensors" in capsys.readouterr().err
    assert await asyncio.to_thread(main, [*base, str(tmp_path / "absent")]) == 2
    monkeypatch.setenv(KEY_VARIABLE, "")
    assert await asyncio.to_thread(main, [*base, folder]) == 2
    assert KEY_VARIABLE in capsys.readouterr().err
    monkeypatch.setenv(KEY_VARIABLE, "sk-live-wrong")
    assert await asyncio.to_thread(main, [*base, folder]) == 1
    assert "Incorrect API key" in capsys.readouterr().err
    assert list((tmp_path / "cache").rglob("*/uploads/*")) == []


async def test_an_admin_pushes_for_a_tenant(client, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    key = tmp_path / "key"
    key.write_text(client.world.keys["admin"] + "\n")
    arguments = ["adapter", "push", "--url", client.url, "--key-file", str(key)]
    folder = str(adapter(tmp_path / "sql"))
    assert await asyncio.to_thread(main, [*arguments, folder, "--tenant", "globex"]) == 0
    assert await client.world.meaning("sql", "globex")


def test_another_tools_layout_is_named_with_the_way_out(tmp_path, capsys):
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").rename(folder / "adapters.safetensors")
    assert main(["adapter", "push", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "adapter_model.safetensors: No such file" in said
    assert "adapters.safetensors: MLX's own layout is not read" in said


def test_parts_cover_the_files_exactly(tmp_path):
    folder = adapter(tmp_path / "a")
    bundle = Bundle.of(folder, PART)
    for file, sha256 in bundle.sums.items():
        data = b"".join(bundle.read(part) for part in bundle.parts() if part.file == file)
        assert hashlib.sha256(data).hexdigest() == sha256
        assert data == (folder / file).read_bytes()
