"""The API by https: as clients see it, and while its certificate is replaced."""

import asyncio
import json
import signal
import ssl
import sys
from asyncio.subprocess import PIPE
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from openai import AsyncOpenAI

from engine.tls import Guard, ServerTls, TlsFiles, Tokens
from gateway.cli.probe import is_ready
from gateway.config import ConfigError, Secret, Settings
from gateway.identity.service import KeyTerms
from tests.certificates import Authority, Pair
from tests.e2e.server import free_ports
from tests.fakes.engine import FakeEngine
from tests.gateway.serving import BASE, build_model_dir
from tests.gateway.test_process import HELLO, ROOT, process, until_ready
from tests.stack import tenant_in


def settings_of(folder: Path, pair: Pair) -> Settings:
    port, metrics_port = free_ports(2)
    made = Settings(
        data_dir=folder / "data", model_dir=build_model_dir(folder / "model"),
        served_model_name=BASE, engines=(f"unix:{folder}/e.sock",),
        port=port, metrics_port=metrics_port,
        ssl_certfile=pair.certificate, ssl_keyfile=pair.key,
    )  # fmt: skip
    made.data_dir.mkdir()
    return made


def serial_at(port: int, authority: Authority) -> int:
    """Of the certificate that whoever connects now is shown."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(authority.file), timeout=5)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


@pytest.mark.slow
async def test_a_stream_outlives_the_certificate_it_began_with(tmp_path: Path):
    authority = Authority(tmp_path)
    pair = authority.issue("gateway")
    settings = settings_of(tmp_path, pair)
    _organisation, key = await tenant_in(settings, KeyTerms())
    trusted = httpx2.AsyncClient(verify=ssl.create_default_context(cafile=authority.file))
    async with (
        FakeEngine(settings.engines[0]) as engine,
        process(settings, tmp_path) as child,
        AsyncOpenAI(
            base_url=f"https://localhost:{settings.port}/v1", api_key=key, max_retries=0,
            http_client=trusted,
        ) as client,
    ):  # fmt: skip
        engine.knobs.script = lambda submit: [60] * submit.max_tokens
        engine.knobs.token_delay_s = 0.05
        async with asyncio.timeout(60):
            while not await is_ready("127.0.0.1", settings.port, tls=True):
                await asyncio.sleep(0.05)
        assert not await is_ready("127.0.0.1", settings.port)  # no plain http beside it
        stream = await client.chat.completions.create(
            model=BASE, messages=HELLO, max_tokens=60, stream=True
        )
        await anext(aiter(stream))
        first = pair.serial
        assert await asyncio.to_thread(serial_at, settings.port, authority) == first
        authority.issue("gateway")
        async with asyncio.timeout(10):
            while await asyncio.to_thread(serial_at, settings.port, authority) == first:
                await asyncio.sleep(0.1)
        assert await asyncio.to_thread(serial_at, settings.port, authority) == pair.serial
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        child.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 10) == 0


@pytest.mark.slow
async def test_engines_are_asked_by_mutual_tls_with_a_token(tmp_path: Path):
    authority, token = Authority(tmp_path), tmp_path / "token"
    token.write_text("of-this-fleet\n")
    of_engine, of_gateway = authority.issue("engine", "engine.internal"), authority.issue("gw")
    files = TlsFiles(certificate=of_engine.certificate, key=of_engine.key, authority=authority.file)
    guard = Guard(tls=ServerTls(files), tokens=Tokens(token))
    plain = settings_of(tmp_path, authority.issue("api"))
    (port,) = free_ports(1)
    settings = replace(
        plain, engines=(f"tls:127.0.0.1:{port}",), ssl_certfile=None, ssl_keyfile=None,
        engine_ssl_ca_certs=authority.file, engine_ssl_server_name="engine.internal",
        engine_ssl_certfile=of_gateway.certificate, engine_ssl_keyfile=of_gateway.key,
        engine_token_file=token,
    )  # fmt: skip
    _organisation, key = await tenant_in(settings, KeyTerms())
    async with (
        FakeEngine(settings.engines[0], guard=guard) as engine,
        process(settings, tmp_path),
        AsyncOpenAI(base_url=f"http://127.0.0.1:{settings.port}/v1", api_key=key) as client,
    ):
        engine.knobs.script = lambda submit: [60] * submit.max_tokens
        await until_ready(settings)
        answer = await client.chat.completions.create(model=BASE, messages=HELLO, max_tokens=5)
        assert answer.usage.completion_tokens == 5
        command = [sys.executable, "-m", "gateway.cli.main", "reconcile", "--json"]
        file = tmp_path / "gateway.json"  # of which the command knows database and credentials
        asked = [*command, "--settings", str(file), "--engine", settings.engines[0]]
        told = await asyncio.create_subprocess_exec(*asked, cwd=ROOT, stdout=PIPE, stderr=PIPE)
        out, said = await asyncio.wait_for(told.communicate(), 30)
        assert json.loads(out), said


def test_half_of_a_certificate_is_refused(tmp_path: Path):
    for name in ("ssl", "engine_ssl"):
        with pytest.raises(ConfigError, match=f"{name}_keyfile"):
            Settings(
                data_dir=tmp_path, model_dir=tmp_path, served_model_name=BASE, engines=("unix:e",),
                **{f"{name}_certfile": tmp_path / "c"},
            )  # fmt: skip


def test_files_of_no_use_are_said_by_name(tmp_path: Path):
    settings = Settings(
        data_dir=tmp_path, model_dir=tmp_path, served_model_name=BASE, engines=("unix:e",),
        ssl_certfile=tmp_path / "no.pem", ssl_keyfile=tmp_path / "no.key",
        engine_token_file=tmp_path / "no.token",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"no\.pem"):
        _ = settings.tls
    with pytest.raises(ConfigError, match=r"no\.token"):
        _ = settings.engine_credentials


def test_a_secret_may_lie_in_a_file_of_its_own(tmp_path: Path):
    (tmp_path / "url").write_text("postgresql://u:p@h/d\n")
    said = {
        "data_dir": "/d", "model_dir": "/m", "served_model_name": "b", "engines": ["unix:e"],
        "database_url": {"file": str(tmp_path / "url")}, "redis_url": "redis://h",
    }  # fmt: skip
    settings = Settings.from_json(json.dumps(said).encode())
    assert settings.database_url == Secret("postgresql://u:p@h/d")
    assert settings.redis_url == Secret("redis://h")


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_a_secrets_file_that_holds_none_is_said_by_name(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "url").write_text(text)
    said = {
        "data_dir": "/d", "model_dir": "/m", "served_model_name": "b", "engines": ["unix:e"],
        "database_url": {"file": str(tmp_path / "url")},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=str(tmp_path / "url")):
        Settings.from_json(json.dumps(said).encode())
