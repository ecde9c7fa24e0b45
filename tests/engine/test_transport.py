"""Frames arrive whole and in order, or the connection is lost."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.address import AddressInvalid
from engine.protocol import Cancel, Goodbye, Hello, Submit, ToEngine, ToGateway
from engine.transport import MAX_FRAME, Connection, ConnectionLost, dial, listen
from tests.fakes.clock import until

Gateway = Connection[ToGateway, ToEngine]
Engine = Connection[ToEngine, ToGateway]


async def pair(address: str) -> tuple[Gateway, Engine, asyncio.Server]:
    accepted: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()

    async def accept(engine: Engine) -> None:
        if accepted.done():
            await engine.close()
        else:
            accepted.set_result(engine)

    server = await listen(address, ToEngine, accept)
    if address.startswith("tcp:"):
        address = f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"
    gateway: Gateway = await dial(address, ToGateway)
    return gateway, await accepted, server


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
        await listen(f"unix:{tmp_path}/e.sock", ToEngine, nobody)
    await gateway.send(Hello("still served"))
    assert await engine.receive() == Hello("still served")
    gateway.abort()
    engine.abort()
    server.close()


async def nobody(engine: Engine) -> None:
    await engine.close()


@pytest.mark.parametrize("address", ["", "unix:", "tcp:host", "tcp::80", "tcp:h:port", "http://x"])
async def test_a_malformed_address_is_named(address: str) -> None:
    with pytest.raises(AddressInvalid):
        await dial(address, ToGateway)
    with pytest.raises(AddressInvalid):
        await listen(address, ToEngine, nobody)


async def test_who_hears_gets_what_had_come_and_what_comes_and_once_why_it_ended(
    tmp_path: Path,
) -> None:
    gateway, engine, server = await pair(f"unix:{tmp_path}/e.sock")
    heard: list[ToEngine] = []
    ends: list[str] = []
    gateway.write(Hello("gw"), Cancel("r1"))
    assert await engine.receive() == Hello("gw")
    engine.hear(heard.extend, ends.append)
    assert heard == [Cancel("r1")]  # it came with the first
    gateway.write(Cancel("r2"), Cancel("r3"))
    await until(lambda: len(heard) == 3)
    await gateway.close()
    await until(lambda: bool(ends))
    await engine.close()
    assert heard == [Cancel("r1"), Cancel("r2"), Cancel("r3")]
    assert ends == ["the peer closed the connection"]
    server.close()


async def test_who_hears_junk_is_told_and_hears_no_more(tmp_path: Path) -> None:
    gateway, engine, server = await pair(f"unix:{tmp_path}/e.sock")
    ends: list[str] = []
    engine.hear(lambda messages: None, ends.append)
    gateway.transport.write(b"\x03\x00\x00\x00abc")
    await until(lambda: bool(ends))
    assert len(ends) == 1
    gateway.abort()
    await engine.close()
    assert len(ends) == 1
    server.close()


async def test_what_came_whole_before_junk_is_heard(tmp_path: Path) -> None:
    gateway, engine, server = await pair(f"unix:{tmp_path}/e.sock")
    heard: list[Sequence[ToEngine]] = []
    ends: list[str] = []
    engine.hear(heard.append, ends.append)
    gateway.write(Cancel("r1"), Cancel("r2"))
    gateway.transport.write(b"\x03\x00\x00\x00abc")
    await until(lambda: bool(ends))
    assert [message for together in heard for message in together] == [Cancel("r1"), Cancel("r2")]
    gateway.abort()
    await engine.close()
    server.close()


async def test_what_nobody_takes_is_not_read_without_end(tmp_path: Path) -> None:
    gateway, engine, server = await pair(f"unix:{tmp_path}/e.sock")
    sent = [Cancel(f"{number:0200}") for number in range(20_000)]
    for message in sent:
        gateway.write(message)
    await until(lambda: not engine.transport.is_reading())
    assert gateway.transport.get_write_buffer_size() > 0
    assert [await engine.receive() for _ in sent] == sent
    assert engine.transport.is_reading()
    gateway.abort()
    engine.abort()
    server.close()
