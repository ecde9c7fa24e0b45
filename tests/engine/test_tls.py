"""Engines let in whom they know, and certificates and tokens are replaced while they serve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from engine.__main__ import _warn_of_strangers
from engine.address import AddressInvalid
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.protocol import Hello, ToEngine
from engine.stream import EngineLost
from engine.tls import (
    ClientTls,
    Credentials,
    Guard,
    ServerTls,
    TlsFiles,
    TlsInvalid,
    Tokens,
)
from engine.transport import listen
from tests.certificates import Authority, Pair
from tests.engine.harness import submit
from tests.engine.test_server import Running
from tests.fakes.runner import build

NAME = "engine.internal"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def guard(authority: Authority, pair: Pair, *, tokens: Path | None = None) -> Guard:
    files = TlsFiles(certificate=pair.certificate, key=pair.key, authority=authority.file)
    return Guard(tls=ServerTls(files, look_s=0.0), tokens=tokens and Tokens(tokens, look_s=0.0))


def shown(authority: Authority, pair: Pair | None, *, name: str | None = NAME) -> ClientTls:
    certificate, key = (pair.certificate, pair.key) if pair else (None, None)
    files = TlsFiles(certificate=certificate, key=key, authority=authority.file)
    return ClientTls(files, server_name=name, look_s=0.0)


@asynccontextmanager
async def engine(guarded: Guard) -> AsyncIterator[str]:
    """A whole engine of fakes on a TLS port; its address."""
    parts, files = build(num_pages=64, max_model_len=200), {"ssl_certfile": "-", "ssl_keyfile": "-"}
    running = Running("tls:127.0.0.1:0", parts, guard=guarded, **files)
    with running:
        yield running.server.address


async def connect(address: str, credentials: Credentials) -> EngineClient:
    return await EngineClient.connect(address, gateway="gw", credentials=credentials, timeout_s=5.0)


def serial_of(client: EngineClient) -> int:
    found = client._connection.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(found).serial_number


async def test_who_shows_a_certificate_of_the_authority_is_served(authority: Authority):
    own = authority.issue("engine", NAME)
    credentials = Credentials(tls=shown(authority, authority.issue("gateway")))
    async with (
        engine(guard(authority, own)) as address,
        await connect(address, credentials) as client,
        client.generate(submit("r", [3, 4], 20)) as stream,
    ):
        assert len([t async for output in stream for t in output.tokens]) == 20


@pytest.mark.parametrize("stranger", ["no certificate", "of another authority"])
async def test_a_stranger_is_not_let_in(authority: Authority, tmp_path: Path, stranger: str):
    other = Authority.in_(tmp_path / "other").issue("gateway")
    tls = shown(authority, None if stranger == "no certificate" else other)
    async with engine(guard(authority, authority.issue("engine", NAME))) as address:
        with pytest.raises(EngineLost):
            await connect(address, Credentials(tls=tls))


async def test_an_engine_of_another_authority_or_name_is_not_believed(
    authority: Authority, tmp_path: Path
):
    other, gateway = Authority.in_(tmp_path / "other"), authority.issue("gateway")
    async with engine(guard(authority, authority.issue("engine", NAME))) as address:
        with pytest.raises(EngineLost, match="certificate"):
            await connect(address, Credentials(tls=shown(other, gateway)))
        tls = shown(authority, gateway, name="another.internal")
        with pytest.raises(EngineLost, match=r"certificate|mismatch"):
            await connect(address, Credentials(tls=tls))


async def test_replaced_certificates_drop_nobody_and_hold_for_whoever_comes_next(
    authority: Authority,
):
    own = authority.issue("engine", NAME)
    gateway = authority.issue("gateway")
    credentials = Credentials(tls=shown(authority, gateway))
    async with (
        engine(guard(authority, own)) as address,
        await connect(address, credentials) as before,
    ):
        first = own.serial
        authority.issue("engine", NAME)  # over the same files
        authority.issue("gateway")
        async with await connect(address, credentials) as after:
            assert (serial_of(before), serial_of(after)) == (first, own.serial)
            assert first != own.serial
            for client in (before, after):
                async with client.generate(submit("r", [3, 4], 5)) as stream:
                    assert [output async for output in stream][-1].finish is not None


async def test_a_replaced_authority_shuts_out_whom_the_old_one_vouched_for(
    authority: Authority, tmp_path: Path
):
    own, old = authority.issue("engine", NAME), authority.issue("gateway")
    guarded = guard(authority, own)
    other = Authority.in_(tmp_path / "other")
    async with engine(guarded) as address:
        async with await connect(address, Credentials(tls=shown(authority, old))):
            pass
        engines = tmp_path / "engines.pem"  # what gateways believe stays as it is
        engines.write_bytes(authority.file.read_bytes())
        authority.file.write_bytes(other.file.read_bytes())
        for pair, let_in in ((old, False), (other.issue("gateway"), True)):
            files = TlsFiles(certificate=pair.certificate, key=pair.key, authority=engines)
            credentials = Credentials(tls=ClientTls(files, server_name=NAME))
            if let_in:
                async with await connect(address, credentials):
                    pass
            else:
                with pytest.raises(EngineLost):
                    await connect(address, credentials)


async def test_files_that_do_not_fit_one_another_are_left_until_they_do(
    authority: Authority, caplog: pytest.LogCaptureFixture
):
    own = authority.issue("engine", NAME)
    old, key = own.serial, own.key.read_bytes()
    credentials = Credentials(tls=shown(authority, authority.issue("gateway")))
    async with engine(guard(authority, own)) as address:
        authority.issue("engine", NAME)
        new_key = own.key.read_bytes()
        own.key.write_bytes(key)  # the certificate is replaced, the key not yet
        for _ in range(2):
            async with await connect(address, credentials) as client:
                assert serial_of(client) == old
        assert caplog.text.count("the old ones hold") == 1
        own.key.write_bytes(new_key)
        async with await connect(address, credentials) as client:
            assert serial_of(client) == own.serial != old


async def test_tokens_are_asked_for_and_rotate(tmp_path: Path):
    engines, gateways = tmp_path / "engine", tmp_path / "gateway"
    engines.write_text("first\n")
    gateways.write_text("first\n")
    guarded = Guard(tokens=Tokens(engines, look_s=0.0))
    running = Running(f"unix:{tmp_path}/e", build(num_pages=64, max_model_len=200), guard=guarded)
    credentials = Credentials(tokens=Tokens(gateways, look_s=0.0))
    with running:
        address = running.server.address
        engines.write_text("first\nsecond\n")
        async with await connect(address, credentials):
            gateways.write_text("second\n")
            async with await connect(address, credentials):
                engines.write_text("second\n")
        for stale in ("first", "secon", "second2", "sécond"):
            gateways.write_text(stale)
            with pytest.raises(EngineLost, match="token"):
                await connect(address, credentials)
        with pytest.raises(EngineLost, match="token"):
            await connect(address, Credentials())
        assert "second" not in repr(Hello("gw", token="second"))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"certificate": ""}, "needs its key"),
        ({"certificate": "", "key": ""}, "no TLS can be made"),
        ({"authority": "nonsense"}, "no TLS can be made"),
        ({"certificate": None, "key": None}, "no TLS can be made"),
    ],
)
def test_files_of_which_nothing_can_be_made_are_named(
    tmp_path: Path, texts: dict[str, str | None], said: str
):
    files = {}
    for name, text in texts.items():
        files[name] = tmp_path / name
        if text is not None:
            files[name].write_text(text)
    with pytest.raises(TlsInvalid, match=said):
        ClientTls(TlsFiles(**files))


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_token_file_without_a_token_is_refused_at_start(tmp_path: Path, text: str | None):
    file = tmp_path / "tokens"
    if text is not None:
        file.write_text(text)
    with pytest.raises(TlsInvalid, match="tokens"):
        Tokens(file)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": "tls:0.0.0.0:1"}, "needs ssl_certfile"),
        ({"listen": "tls:0.0.0.0:1", "ssl_certfile": "c"}, "needs ssl_certfile"),
        ({"listen": "tcp:0.0.0.0:1", "ssl_ca_certs": "c"}, "needs listen=tls"),
    ],
)
def test_half_a_door_is_refused(settings: dict[str, str], said: str):
    with pytest.raises(ConfigError, match=said):
        EngineConfig(model="m", **settings)  # type: ignore[arg-type]


async def test_without_certificates_nothing_listens_with_tls():
    with pytest.raises(AddressInvalid):
        await listen("tls:127.0.0.1:0", ToEngine, lambda peer: asyncio.sleep(0))


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"listen": "tcp:0.0.0.0:1"}, True),
        ({"listen": "tls:0.0.0.0:1", "ssl_certfile": "c", "ssl_keyfile": "k"}, True),
        ({"listen": "tcp:0.0.0.0:1", "token_file": "t"}, False),
        ({"listen": "tcp:127.0.0.1:1"}, False),
        ({"listen": "unix:e.sock"}, False),
    ],
)
def test_a_door_that_is_open_to_strangers_is_said(
    settings: dict[str, str], warned: bool, caplog: pytest.LogCaptureFixture
):
    _warn_of_strangers(EngineConfig(model="m", **settings))  # type: ignore[arg-type]
    assert ("whoever reaches" in caplog.text) == warned
