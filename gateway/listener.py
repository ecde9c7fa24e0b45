"""One listening port of this process, served by uvicorn inside a loop that is ours."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from engine.tls import ServerTls
from gateway.config import ConfigError
from gateway.connection import ClientConnection
from gateway.http import Asgi

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
# How long a client may take nothing of what was sent to it. Then the system ends the connection,
# which ends its request: one that reads slowly is waited for, one that reads nothing is not.
STALL_SECONDS = 60
DRAIN_SECONDS = 25  # how long running streams may go on after we are asked to stop
FAREWELL_SECONDS = 1  # how long the other end of a TLS connection may take to say goodbye


class Listener(uvicorn.Server):
    """``serve`` runs until ``should_exit`` is set and then lets answers finish."""

    def __init__(
        self,
        application: Asgi,
        host: str,
        port: int,
        *,
        tls: ServerTls | None = None,
        shared: bool = False,
    ) -> None:
        """Binds at once; ``shared``: a port that other processes of ours listen on too.

        Raises ConfigError when the port cannot be had.
        """
        self._socket = _bind(host, port, shared=shared)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            application,
            interface="asgi3",
            http=ClientConnection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,  # nobody's word counts for where a client is
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        if tls is not None:
            config.load()
            config.ssl = tls.context
        super().__init__(config)
        self._tls = tls

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """A client that keeps a TLS connection without reading from it answers no goodbye, and
        would be waited for as if a stream were running."""
        if self._tls is None:
            await super().shutdown(sockets)
            return
        leaving = asyncio.create_task(self._leave())
        try:
            await super().shutdown(sockets)
        finally:
            leaving.cancel()

    async def _leave(self) -> None:
        while True:
            await asyncio.sleep(FAREWELL_SECONDS)
            for connection in list(self.server_state.connections):
                transport = connection.transport
                if transport.is_closing() and not transport.get_write_buffer_size():
                    transport.abort()

    async def run_until_stopped(self) -> None:
        await self.serve(sockets=[self._socket])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled once for the whole process, not by every listener."""
        yield


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:  # the system gives each new connection to one of them
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit it
            bound.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALL_SECONDS * 1000)
            )
        bound.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound
