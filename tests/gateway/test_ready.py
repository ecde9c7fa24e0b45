"""What a server says when it answers, to programs and to people."""

import asyncio
import json
from pathlib import Path

from gateway.bootstrap import Tenant
from gateway.cli.probe import is_ready, url_host
from gateway.cli.ready import Ready, banner, write_private, write_ready

READY = Ready(
    base_url="http://127.0.0.1:8000/v1",
    dashboard_url="http://127.0.0.1:8000/dashboard",
    metrics_url="http://127.0.0.1:8001/metrics",
    admin_key="sk-admin-x",
    base_model="base",
    tenants=[Tenant(name="acme", api_key="sk-live-x", models=["base", "sql"])],
)


def test_the_ready_file_holds_what_a_program_needs_and_is_private(tmp_path: Path):
    path = tmp_path / "ready.json"
    write_ready(path, READY)
    told = json.loads(path.read_text())
    assert told["base_url"] == READY.base_url
    assert told["tenants"] == [
        {"name": "acme", "api_key": "sk-live-x", "models": ["base", "sql"]},
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_private_file_is_replaced_whole_and_stays_private(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("open to all")
    path.chmod(0o644)
    write_private(path, b"secret")
    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_banner_shows_a_line_for_curl_that_can_be_copied():
    said = banner(READY)
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in said
    assert "Authorization: Bearer sk-live-x" in said
    assert '{"model": "base", "messages": [{"role": "user", "content": "Hello!"}]}' in said


def test_a_server_that_listens_everywhere_is_reached_on_loopback():
    assert [url_host(h) for h in ("0.0.0.0", "::", "127.0.0.1")] == [
        "127.0.0.1",
        "[::1]",
        "127.0.0.1",
    ]


async def test_only_a_200_is_ready():
    answers = iter(
        [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"nonsense\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(next(answers))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert [await is_ready("127.0.0.1", port) for _ in range(3)] == [False, False, True]
    assert not await is_ready("127.0.0.1", port)  # nobody listens
