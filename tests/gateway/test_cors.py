"""Web pages of other origins may call the API where the operator names them, and nowhere else."""

from pathlib import Path

import pytest

from gateway.config import ConfigError, Settings
from tests.gateway.serving import BASE, ask, post, serving

PAGE = "https://app.example.com"
PREFLIGHT = (
    b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    b"origin: %s\r\naccess-control-request-method: POST\r\n"
    b"access-control-request-headers: authorization, content-type, x-stainless-os\r\n\r\n"
)
CHAT = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


async def test_a_named_page_may_call_and_read_what_it_needs(tmp_path):
    async with serving(tmp_path, allowed_origins=(PAGE,)) as server:
        allowed = await ask(server.port, PREFLIGHT % PAGE.encode())
        assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
        got = await ask(server.port, post(CHAT, f"origin: {PAGE}"))
        assert (got.status, got.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "x-request-id" in got.headers["access-control-expose-headers"]
        assert got.headers["vary"] == "Origin"
        refused = await ask(server.port, post({**CHAT, "n": 0}, f"origin: {PAGE}"))
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (400, PAGE)
        streamed = await ask(server.port, post({**CHAT, "stream": True}, f"origin: {PAGE}"))
        assert streamed.headers["access-control-allow-origin"] == PAGE


async def test_another_page_may_not(tmp_path):
    async with serving(tmp_path, allowed_origins=(PAGE,)) as server:
        refused = await ask(server.port, PREFLIGHT % b"https://evil.example")
        assert refused.status == 400
        got = await ask(server.port, post(CHAT, "origin: https://evil.example"))
        assert "access-control-allow-origin" not in got.headers


async def test_nobody_may_unless_told(tmp_path):
    async with serving(tmp_path) as server:
        assert (await ask(server.port, PREFLIGHT % PAGE.encode())).status == 405
        got = await ask(server.port, post(CHAT, f"origin: {PAGE}"))
        assert "access-control-allow-origin" not in got.headers


async def test_all_may_where_the_operator_says_so(tmp_path):
    async with serving(tmp_path, allowed_origins=("*",)) as server:
        got = await ask(server.port, post(CHAT, "origin: https://any.example"))
        assert got.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in got.headers


def settings(*origins, is_open=False):
    return Settings(data_dir=Path("d"), model_dir=Path("m"), served_model_name="base",
                    engines=("unix:e",), allowed_origins=origins, open=is_open)  # fmt: skip


def test_origins_are_checked_at_start():
    assert settings(PAGE, "http://localhost:3000", "*").allowed_origins[1].endswith("3000")
    for wrong in ("app.example.com", f"{PAGE}/", "HTTPS://app.example.com", "ftp://x", "", "null"):
        with pytest.raises(ConfigError, match="allowed_origins"):
            settings(wrong)
    with pytest.raises(ConfigError, match="no key"):
        settings("*", is_open=True)
