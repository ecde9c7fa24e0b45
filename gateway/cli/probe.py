"""Asks a server whether it is ready, in the one way that needs no HTTP client."""

import asyncio
import contextlib
import ssl

TIMEOUT_SECONDS = 2.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 (not bound here)


def reachable(host: str) -> str:
    """Where a server that listens on ``host`` is reached from this machine."""
    return ANY_ADDRESS.get(host, host)


def url_host(host: str) -> str:
    host = reachable(host)
    return f"[{host}]" if ":" in host else host


async def is_ready(host: str, port: int, path: str = "/readyz", *, tls: bool = False) -> bool:
    """Whether a GET of the path is answered with 200.

    With TLS any certificate will do: it is for the name that clients use, and we ask our own
    program on this machine, and tell it nothing.
    """
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await _status(reachable(host), port, path, _unchecked() if tls else None) == 200
    except (OSError, TimeoutError, ValueError):
        return False


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _status(host: str, port: int, path: str, tls: ssl.SSLContext | None) -> int:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        _version, status, *_reason = (await reader.readline()).split()
        return int(status)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
