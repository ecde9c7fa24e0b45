"""Addresses as people write them, whoever reads them."""

import asyncio

import pytest

from engine.address import (
    AddressInvalid,
    FileAddress,
    HostPort,
    NetAddress,
    read_address,
    read_net_address,
)
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.protocol import ToEngine, ToGateway
from engine.transport import Connection, ConnectionLost, dial, listen
from gateway.config import ConfigError as GatewayConfigError
from gateway.fleet.directory import open_directory

WRONG = (
    "", "unix:", "tcp:host", "tcp::80", "tcp:h:port", "tcp:h:99999", "tcp:h:²", "tcp:h:-1",
    "tcp:h: 1", "tcp:[]:80", "tcp:a b:80", "tls:h:1" + "0" * 5000, "http://x:80",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp:host:80", NetAddress("tcp", HostPort("host", 80))),
        ("tls:[fd00::1]:65535", NetAddress("tls", HostPort("fd00::1", 65535))),
        ("tcp:0.0.0.0:0", NetAddress("tcp", HostPort("0.0.0.0", 0))),
    ],
)
def test_an_address_is_read_and_written_as_it_was(text: str, address: NetAddress) -> None:
    assert read_address(text) == read_net_address(text) == address
    assert str(address) == text


def test_a_file_is_no_address_for_another_machine() -> None:
    assert isinstance(read_address("unix:/run/e.sock"), FileAddress)
    with pytest.raises(AddressInvalid, match="none of tcp:HOST:PORT and tls:HOST:PORT"):
        read_net_address("unix:/run/e.sock")


@pytest.mark.parametrize("text", WRONG)
async def test_what_is_no_address_is_refused_by_everybody(text: str) -> None:
    for wait in (dial(text, ToGateway), listen(text, ToEngine, nobody)):
        with pytest.raises(AddressInvalid, match="none of"):
            await wait
    with pytest.raises(ConfigError, match=r"listen=.* must be one of"):
        EngineConfig(model="m", listen=text)
    with pytest.raises(ConfigError, match=r"advertise=.* must be one of"):
        EngineConfig(model="m", advertise=text)
    with pytest.raises(GatewayConfigError, match=r"engines: .* none of"):
        open_directory((text,), None)


@pytest.mark.parametrize("entry", ["tcp:h:0", "dns:h:0", "dns:h:99999", "dns:h", "dns::1", "srv:"])
def test_nobody_is_found_at_such_a_place(entry: str) -> None:
    with pytest.raises(GatewayConfigError, match=r"engines: .* none of"):
        open_directory((entry,), None)


async def test_an_ipv6_address_in_brackets_is_dialled_without_them() -> None:
    try:
        server = await listen("tcp:[::1]:0", ToEngine, nobody)
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with server, asyncio.timeout(10.0):
        port = server.sockets[0].getsockname()[1]
        gateway = await dial(f"tcp:[::1]:{port}", ToGateway)
        with pytest.raises(ConnectionLost):
            await gateway.receive()
        await gateway.close()


async def nobody(engine: Connection[ToEngine, ToGateway]) -> None:
    await engine.close()
