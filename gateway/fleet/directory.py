"""Where the engines are. An engine is an address, whatever runs it.

Each entry of ``Settings.engines`` names one engine or a place that knows some:

* ``unix:PATH``, ``tcp:HOST:PORT`` and ``tls:HOST:PORT`` are engines;
* ``dns:HOST:PORT`` is every address that HOST has, ``srv:NAME`` every target of an SRV record;
  ``dns+tls:`` and ``srv+tls:`` are the same with TLS;
* ``redis:`` is whoever beats there (``engine/beats.py``), ``redis:KEY`` under another key.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from engine.address import NET_KINDS, AddressInvalid, HostPort, NetAddress, read_address
from gateway.config import ConfigError, Secret
from gateway.fleet.beating import Beating
from gateway.fleet.unavailable import DirectoryUnavailable

LOOK_S = 1.0  # between looks at a directory whose answer may change
DNS_SECONDS = 3.0  # the longest wait for an answer
FORMS = "unix:PATH, tcp:HOST:PORT, tls:HOST:PORT, dns:HOST:PORT, srv:NAME and redis:"
T = TypeVar("T")


class Directory(Protocol):
    @property
    def known(self) -> Sequence[str]:
        """Engines that are known before the first look."""
        ...

    @property
    def changes(self) -> bool:
        """Whether a later look may find others."""
        ...

    async def look(self) -> Sequence[str]:
        """The address of every engine that may be tried.

        Raises DirectoryUnavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class Static:
    """Named in the settings."""

    engines: tuple[str, ...]
    changes: bool = False

    @property
    def known(self) -> Sequence[str]:
        return self.engines

    async def look(self) -> Sequence[str]:
        return self.engines


@dataclass(frozen=True, slots=True)
class Dns:
    """All addresses of one host, as a headless service has them."""

    host: str
    port: int
    wire: str = "tcp"
    changes: bool = True
    known: tuple[str, ...] = ()

    async def look(self) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DNS_SECONDS):
                found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            raise DirectoryUnavailable(f"dns:{self.host}:{self.port}: {error}") from error
        return sorted(
            {str(NetAddress(self.wire, HostPort(str(at[0]), self.port))) for *_, at in found}
        )


@dataclass(frozen=True, slots=True)
class Services:
    """Hosts and ports of an SRV record."""

    name: str
    ask: Callable[[str], Awaitable[Sequence[tuple[str, int]]]]
    wire: str = "tcp"
    changes: bool = True
    known: tuple[str, ...] = ()

    async def look(self) -> Sequence[str]:
        try:
            async with asyncio.timeout(DNS_SECONDS):
                found = await self.ask(self.name)
        except (OSError, TimeoutError) as error:
            raise DirectoryUnavailable(f"srv:{self.name}: {error}") from error
        return sorted({str(NetAddress(self.wire, HostPort(host, port))) for host, port in found})


class Several:
    """What any of them says. One that does not answer is remembered as it was."""

    def __init__(self, parts: Sequence[Directory]) -> None:
        self._parts = parts
        self._last: dict[int, Sequence[str]] = {}

    @property
    def known(self) -> Sequence[str]:
        return tuple(dict.fromkeys(address for part in self._parts for address in part.known))

    @property
    def changes(self) -> bool:
        return any(part.changes for part in self._parts)

    async def look(self) -> Sequence[str]:
        silent: list[str] = []

        async def one(number: int, part: Directory) -> None:
            try:
                self._last[number] = await part.look()
            except DirectoryUnavailable as error:
                silent.append(str(error))

        await asyncio.gather(*(one(number, part) for number, part in enumerate(self._parts)))
        if silent and not any(self._last.values()):
            raise DirectoryUnavailable("; ".join(silent))
        found = (address for number in sorted(self._last) for address in self._last[number])
        return tuple(dict.fromkeys(found))


def open_directory(entries: Sequence[str], redis_url: Secret | None) -> Directory:
    """Of what the settings name. Raises ConfigError."""
    engines = [entry for entry in entries if _is_engine(entry)]
    places = [_place(entry, redis_url) for entry in entries if entry not in engines]
    parts: list[Directory] = [Static(tuple(engines))] if engines else []
    return Several([*parts, *places])


def _place(entry: str, redis_url: Secret | None) -> Directory:
    kind, _, rest = entry.partition(":")
    kind, _, tls = kind.partition("+")
    if kind == "redis" and not tls:
        if redis_url is None:
            raise ConfigError(f"engines: {entry!r} needs a redis_url")
        return Beating.at(redis_url, rest)
    wire = tls or "tcp"
    if wire in NET_KINDS and kind == "dns":
        place = _checked(entry, HostPort.read, rest)
        return Dns(place.host, _dialled(entry, place), wire)
    if wire in NET_KINDS and kind == "srv" and rest:
        from gateway.fleet.resolver import services  # dnspython, only where it is used

        return Services(rest, services, wire)
    raise _none_of_these(entry)


def _is_engine(entry: str) -> bool:
    """Raises ConfigError where it looks like one."""
    if entry.partition(":")[0] not in ("unix", *NET_KINDS):
        return False
    at = _checked(entry, read_address, entry)
    if isinstance(at, NetAddress):
        _dialled(entry, at.place)
    return True


def _dialled(entry: str, place: HostPort) -> int:
    """Its port: 0 is for who listens. Raises ConfigError."""
    if place.port == 0:
        raise _none_of_these(entry, "; nobody listens on port 0")
    return place.port


def _checked(entry: str, read: Callable[[str], T], text: str) -> T:
    """Raises ConfigError."""
    try:
        return read(text)
    except AddressInvalid as error:
        raise ConfigError(f"engines: {error}") from error
    except ValueError as error:
        raise _none_of_these(entry, f"; {error}") from error


def _none_of_these(entry: str, why: str = "") -> ConfigError:
    return ConfigError(f"engines: {entry[:80]!r} is none of {FORMS}{why}")
