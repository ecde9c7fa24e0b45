"""Where pages go and come: ``tcp:HOST:PORT`` in the clear, ``tls:HOST:PORT`` with TLS.

An engine that knows an authority, by which it would know other engines, takes pages and gives them
with TLS alone, and both sides show a certificate: whoever was told a wrong address gets nothing.
Belongs to one event loop.
"""

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path

from engine.address import HostPort, NetAddress, read_net_address
from engine.config import EngineConfig
from engine.handoff.channel import Channel, PlainChannel, TlsChannel
from engine.handoff.stream import FrameStream, HandoffFailed
from engine.tls import ClientTls, ServerTls, TlsFiles

BACKLOG = 256  # connections that wait to be accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffTls:
    """Both ends of one engine: ``taking`` where others dial, ``giving`` where it dials."""

    taking: ServerTls
    giving: ClientTls


def handoff_tls(config: EngineConfig) -> HandoffTls | None:
    """None where pages go in the clear. Raises TlsInvalid."""
    certificate, key, authority = config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs
    if certificate is None or key is None or authority is None:
        return None
    files = TlsFiles(certificate=Path(certificate), key=Path(key), authority=Path(authority))
    return HandoffTls(
        taking=ServerTls(files),
        giving=ClientTls(files, server_name=config.handoff_server_name),
    )


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket, and the address with the port that was chosen for 0. Raises OSError."""
    at = read_net_address(address)
    family = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)[0][0]
    made = socket.create_server((at.host, at.port), family=family, backlog=BACKLOG)
    made.setblocking(False)
    return made, str(NetAddress(at.kind, HostPort(at.host, made.getsockname()[1])))


async def taken(
    connected: socket.socket, tls: HandoffTls | None, *, timeout_s: float
) -> FrameStream:
    """Of who has dialled us, and shown its certificate. Raises HandoffFailed."""
    channel: Channel = PlainChannel(connected)
    if tls is not None:
        channel = TlsChannel(channel, tls.taking.context, server_side=True)
    return await _open(channel, "another engine", timeout_s)


async def dial(address: str, tls: HandoffTls | None, *, timeout_s: float) -> FrameStream:
    """Raises HandoffFailed."""
    try:
        to = read_net_address(address)
        _same_kind(to.kind, tls)
        async with asyncio.timeout(timeout_s):
            connected = await _connect(to.host, to.port)
    except (OSError, ValueError, TimeoutError) as error:
        raise HandoffFailed(f"{address}: {str(error) or 'no answer'}") from error
    channel: Channel = PlainChannel(connected)
    if tls is not None:
        name = tls.giving.server_name or to.host
        channel = TlsChannel(channel, tls.giving.context, server_name=name)
    return await _open(channel, address, timeout_s)


def _same_kind(kind: str, tls: HandoffTls | None) -> None:
    if kind == "tls" and tls is None:
        raise ValueError("pages go there with TLS: give us ssl_certfile, _keyfile and _ca_certs")
    if kind == "tcp" and tls is not None:
        raise ValueError("pages would go there in the clear: have it listen on tls:")


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    dialled = socket.socket(family, kind, protocol)
    try:
        dialled.setblocking(False)
        await loop.sock_connect(dialled, address)
    except BaseException:
        dialled.close()
        raise
    return dialled


async def _open(channel: Channel, other: str, timeout_s: float) -> FrameStream:
    try:
        async with asyncio.timeout(timeout_s):
            await channel.open()
    except BaseException as error:
        channel.close()
        if isinstance(error, (OSError, TimeoutError)):
            why = str(error) or f"no TLS in {timeout_s:g} s"
            raise HandoffFailed(f"{other}: {why}") from error
        raise
    return FrameStream(channel, timeout_s=timeout_s)
