"""Pages between engines go with TLS where an authority is known, to whom it vouches for alone."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.handoff.frames import Page, Read
from engine.handoff.sockets import HandoffTls, dial, handoff_tls, listen, taken
from engine.handoff.stream import FrameStream, HandoffFailed
from engine.protocol import Role
from engine.tls import ClientTls, ServerTls, TlsFiles
from tests.certificates import Authority, Pair

TIMEOUT_S = 20.0
PAGES = 3
PAGE_BYTES = (1 << 20) + 17


def tls(
    authority: Path, pair: Pair, *, name: str | None = None, listening: str = "tls:h:1"
) -> HandoffTls | None:
    """As an engine's settings make it."""
    return handoff_tls(
        EngineConfig(
            model="m", handoff_listen=listening, ssl_certfile=str(pair.certificate),
            ssl_keyfile=str(pair.key), ssl_ca_certs=str(authority), handoff_server_name=name,
        )
    )  # fmt: skip


@dataclass
class Taker:
    """Serves every engine that dials, as the wire does, and notes what became of each."""

    tls: HandoffTls | None
    serve: Callable[[FrameStream], Awaitable[None]]
    address: str = ""
    refused: list[str] = field(default_factory=list)
    served: int = 0

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator["Taker"]:
        kind = "tcp" if self.tls is None else "tls"
        listening, self.address = listen(f"{kind}:127.0.0.1:0")
        accepting = asyncio.create_task(self._accept(listening))
        try:
            yield self
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connected, _ = await loop.sock_accept(listening)
            try:
                with contextlib.closing(
                    await taken(connected, self.tls, timeout_s=TIMEOUT_S)
                ) as stream:
                    await self.serve(stream)
                    self.served += 1
            except HandoffFailed as failure:
                self.refused.append(str(failure))


async def echo(stream: FrameStream) -> None:
    """Give back every page as it came, until the other side has had its last."""
    page = bytearray(PAGE_BYTES)
    for _ in range(PAGES):
        index = (await stream.expect(Page)).index
        await stream.into(memoryview(page))
        await stream.send(Page(index), memoryview(bytes(page)))


async def greet(stream: FrameStream) -> None:
    await stream.send(Read(7))


async def hear(address: str, own: HandoffTls | None) -> int:
    with contextlib.closing(await dial(address, own, timeout_s=TIMEOUT_S)) as stream:
        return (await stream.expect(Read)).index


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_pages_cross_both_ways_at_once_bit_by_bit(authority: Authority):
    pages = [secrets.token_bytes(PAGE_BYTES) for _ in range(PAGES)]
    taking = tls(authority.file, authority.issue("taker"))
    giving = tls(authority.file, authority.issue("giver"))
    async with Taker(taking, echo).up() as taker:
        stream = await dial(taker.address, giving, timeout_s=TIMEOUT_S)

        async def give() -> None:
            for index, page in enumerate(pages):
                await stream.send(Page(index), memoryview(page))

        back = [bytearray(PAGE_BYTES) for _ in pages]
        sending = asyncio.create_task(give())
        for index, into in enumerate(back):
            assert (await stream.expect(Page)).index == index
            await stream.into(memoryview(into))
        await sending
        with pytest.raises(HandoffFailed, match="closed the connection"):
            await stream.receive()
        stream.close()
    assert [bytes(page) for page in back] == pages
    assert (taker.served, taker.refused) == (1, [])


async def test_nothing_that_goes_over_can_be_read_on_the_way(authority: Authority):
    marker = b"what a tenant asked"
    page = (marker * (PAGE_BYTES // len(marker) + 1))[:PAGE_BYTES]
    both = tls(authority.file, authority.issue("engine"))
    seen = bytearray()
    async with Taker(both, echo).up() as taker:
        port = int(taker.address.rpartition(":")[2])

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)

            async def pump(source: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
                while data := await source.read(1 << 16):
                    seen.extend(data)
                    into.write(data)
                    await into.drain()
                into.close()

            await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        address = f"tls:127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stream = await dial(address, both, timeout_s=TIMEOUT_S)
        back = bytearray(PAGE_BYTES)
        for index in range(PAGES):
            await stream.send(Page(index), memoryview(page))
            await stream.expect(Page)
            await stream.into(memoryview(back))
        stream.close()
        server.close()
    assert bytes(back) == page
    assert len(seen) > 2 * PAGES * PAGE_BYTES
    assert marker not in seen


@pytest.mark.parametrize("stranger", ["giver", "taker"])
async def test_who_has_a_certificate_of_another_authority_gives_and_takes_nothing(
    authority: Authority, tmp_path: Path, stranger: str
):
    """The stranger believes in our authority, so it is ours that refuses."""
    other = Authority.in_(tmp_path / "other").issue("stranger")
    own = authority.issue("engine")
    taking = tls(authority.file, other if stranger == "taker" else own)
    giving = tls(authority.file, other if stranger == "giver" else own)
    async with Taker(taking, greet).up() as taker:
        with pytest.raises(HandoffFailed, match=r"SSL|closed|reset"):
            await hear(taker.address, giving)
        while not taker.refused:
            await asyncio.sleep(0.01)
        assert taker.served == 0
        assert "CERTIFICATE_VERIFY_FAILED" in taker.refused[0] or stranger == "taker"


async def test_a_certificate_is_for_the_addresss_host_or_for_the_name_that_is_set(
    authority: Authority,
):
    taking = tls(authority.file, authority.issue("taker", "engines.internal"))
    pair = authority.issue("giver")
    async with Taker(taking, greet).up() as taker:
        assert await hear(taker.address, tls(authority.file, pair)) == 7
        named = tls(authority.file, pair, name="engines.internal")
        assert await hear(taker.address, named) == 7
        with pytest.raises(HandoffFailed, match=r"(?i)mismatch"):
            await hear(taker.address, tls(authority.file, pair, name="another.internal"))


async def test_pages_in_the_clear_are_neither_taken_nor_given(authority: Authority):
    both = tls(authority.file, authority.issue("engine"))
    async with Taker(both, greet).up() as taker:
        with pytest.raises(HandoffFailed, match="pages go there with TLS"):
            await hear(taker.address, None)
        plain = taker.address.replace("tls:", "tcp:")
        stream = await dial(plain, None, timeout_s=TIMEOUT_S)
        with contextlib.closing(stream):
            await stream.send(Read(1))  # no handshake
            with pytest.raises(HandoffFailed):
                await stream.receive()
        while not taker.refused:
            await asyncio.sleep(0.01)
        assert taker.served == 0
    async with Taker(None, greet).up() as taker:
        with pytest.raises(HandoffFailed, match="in the clear"):
            await hear(taker.address, both)
        assert (taker.served, taker.refused) == (0, [])


async def test_who_says_nothing_is_given_up(authority: Authority):
    both = tls(authority.file, authority.issue("engine"))
    listening, address = listen("tls:127.0.0.1:0")
    with listening, socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))):
        connected, _ = listening.accept()
        with pytest.raises(HandoffFailed, match=r"no TLS in 0\.05 s"):
            await taken(connected, both, timeout_s=0.05)
        assert connected.fileno() == -1


async def test_a_connection_that_is_cut_is_not_taken_for_one_that_has_ended(authority: Authority):
    both = tls(authority.file, authority.issue("engine"))

    async def half(stream: FrameStream) -> None:
        await stream.send(Page(0), memoryview(bytes(PAGE_BYTES // 2)))

    async with Taker(both, half).up() as taker:
        stream = await dial(taker.address, both, timeout_s=TIMEOUT_S)
        await stream.expect(Page)
        with pytest.raises(HandoffFailed, match="closed the connection"):
            await stream.into(memoryview(bytearray(PAGE_BYTES)))
        stream.close()


async def test_replaced_certificates_hold_for_the_next_handoff(
    authority: Authority, tmp_path: Path
):
    pair = authority.issue("taker")
    files = TlsFiles(certificate=pair.certificate, key=pair.key, authority=authority.file)
    taking = HandoffTls(taking=ServerTls(files, look_s=0.0), giving=ClientTls(files))
    believed = tmp_path / "believed.pem"  # of the giver: another authority from the start
    other = Authority.in_(tmp_path / "other")
    believed.write_bytes(other.file.read_bytes())
    giving = tls(believed, authority.issue("giver"))
    async with Taker(taking, greet).up() as taker:
        with pytest.raises(HandoffFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await hear(taker.address, giving)
        fresh = other.issue("taker")
        pair.certificate.write_bytes(fresh.certificate.read_bytes())
        pair.key.write_bytes(fresh.key.read_bytes())
        assert await hear(taker.address, giving) == 7


async def test_an_address_that_is_none_fails_the_handoff_alone(authority: Authority):
    both = tls(authority.file, authority.issue("engine"))
    for address in ("", "tls:h", "tls::1", "tls:h:70000", "unix:/tmp/e", "tcp:h:x"):
        for own in (None, both):
            with pytest.raises(HandoffFailed, match=r"none of tcp:HOST:PORT and tls:HOST:PORT"):
                await dial(address, own, timeout_s=TIMEOUT_S)


FILES = {"ssl_certfile": "c", "ssl_keyfile": "k", "ssl_ca_certs": "a"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"handoff_listen": "tls:h:1"}, "handoffs with TLS need ssl_certfile"),
        ({"handoff_listen": "tls:h:1", "ssl_certfile": "c", "ssl_keyfile": "k"}, "need .*ca_certs"),
        ({"role": Role.PREFILL, "ssl_ca_certs": "a"}, "handoffs with TLS need ssl_certfile"),
        ({"handoff_listen": "tcp:h:1", **FILES}, r"tcp:h:1 beside ssl_ca_certs.*in the clear"),
        (
            {"handoff_listen": "tls:h:1", "handoff_advertise": "tcp:h:1", **FILES},
            "both must be tcp: or both tls:",
        ),
        ({"role": Role.PREFILL, "handoff_server_name": "n"}, "handoff_server_name=n needs"),
        (
            {"handoff_listen": "tls:h:99999", **FILES},
            "its port must be a number",
        ),
    ],
)
def test_half_of_it_is_refused_at_start(settings: dict[str, str], said: str):
    with pytest.raises(ConfigError, match=said):
        EngineConfig(model="m", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"role": Role.PREFILL, **FILES},
        {"role": Role.PREFILL, "listen": "tls:h:1", "ssl_certfile": "c", "ssl_keyfile": "k"},
        {"handoff_listen": "tls:h:1", "handoff_server_name": "n", **FILES},
        {
            "handoff_listen": "tcp:h:1", "listen": "tls:h:1",
            "ssl_certfile": "c", "ssl_keyfile": "k",
        },
    ],
)  # fmt: skip
def test_what_is_whole_is_taken(settings: dict[str, str]):
    assert EngineConfig(model="m", **settings)  # type: ignore[arg-type]
