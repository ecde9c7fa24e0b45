"""Frames arrive whole and in order, or the connection is lost."""

import asyncio
from pathlib import Path

import pytest

from engine.address import AddressInvalid
from engine.protocol import Cancel, Goodbye, Hello, Submit, ToEngine, ToGateway
from engine.transport import MAX_FRAME, Connection, ConnectionLost, dial, listen

Gateway = Connection[ToGateway, ToEngine]
Engine = Connection[ToEngine, ToGateway]


async def pair(address: str) -> tuple[Gateway, Engine, asyncio.Server]:
    accepted: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if accepted.done():
            writer.close()
        else:
            accepted.set_result(Connection(reader, writer, ToEngine))

    server = await listen(address, accept)
    if address.startswith("tcp:"):
        address = f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"
    reader, writer = await dial(address)
    return Connection(reader, writer, ToGateway), await accepted, server


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_messages_arrive_in_order_both_ways(kind: str, tmp_path: Path) -> None:
    address = "tcp:127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/e.sock"
    gateway, engine, server = await pair(address)
    sent = [Hello("gw"), Submit("r1", "t", list(range(100_000)), 1), Cancel("r1")]
    for message in sent:
        await gateway.send(message)
    assert [await engine.receive() for _ in sent] == sent
    await engine.send(Goodbye("bye"))
    assert await gateway.receive() == Goodbye("bye")
    await gateway.close()
    with pytest.raises(ConnectionLost):
        await engine.receive()
    await engine.close()
    server.close()


async def test_a_message_beyond_the_frame_limit_is_not_sent(tmp_path: Path) -> None:
    gateway, engine, server = await pair(f"unix:{tmp_path}/e.sock")
    with pytest.raises(ConnectionLost, match=str(MAX_FRAME)):
        await gateway.send(Hello("g" * MAX_FRAME))
    gateway.abort()
    engine.abort()
    server.close()


async def test_write_tells_how_much_the_peer_has_not_taken(tmp_path: Path) -> None:
    gateway, engine, server = await pair(f"unix:{tmp_path}/e.sock")
    unread = [gateway.write(Hello("g" * 200_000)) for _ in range(10)]
    assert unread[0] < unread[-1]
    assert unread[-1] > 1_000_000
    gateway.abort()
    engine.abort()
    server.close()


async def test_a_stale_socket_file_is_replaced_and_private(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    path.write_text("left by a killed engine")
    gateway, engine, server = await pair(f"unix:{path}")
    assert path.stat().st_mode & 0o777 == 0o600
    gateway.abort()
    engine.abort()
    server.close()


async def test_an_address_somebody_listens_on_is_not_taken_over(tmp_path: Path) -> None:
    gateway, engine, server = await pair(f"unix:{tmp_path}/e.sock")
    with pytest.raises(OSError, match="another program listens there"):
        await listen(f"unix:{tmp_path}/e.sock", nobody)
    await gateway.send(Hello("still served"))
    assert await engine.receive() == Hello("still served")
    gateway.abort()
    engine.abort()
    server.close()


async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("address", ["", "unix:", "tcp:host", "tcp::80", "tcp:h:port", "http://x"])
async def test_a_malformed_address_is_named(address: str) -> None:
    with pytest.raises(AddressInvalid):
        await dial(address)
    with pytest.raises(AddressInvalid):
        await listen(address, nobody)
