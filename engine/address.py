"""Where a program is reached, read in one place: ``unix:PATH``, ``tcp:HOST:PORT``, and with TLS
``tls:HOST:PORT``.

An IPv6 address is written in brackets, as in a URL; whoever connects needs it without.
"""

from dataclasses import dataclass
from pathlib import Path

FORMS = "unix:PATH, tcp:HOST:PORT and tls:HOST:PORT"
MOST_PORT = 65535
NET_KINDS = ("tcp", "tls")


class AddressInvalid(ValueError):
    """No address, or not of the forms that are possible there. One sentence."""

    def __init__(self, text: str, *, why: str = "", forms: str = FORMS) -> None:
        self.expected = forms + (f"; {why}" if why else "")
        super().__init__(f"{text[:200]!r} is none of {self.expected}")


@dataclass(frozen=True, slots=True)
class HostPort:
    host: str  # without brackets
    port: int

    @classmethod
    def read(cls, text: str) -> "HostPort":
        """Raises ValueError, which says what is wrong with it."""
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not host or any(each in host for each in "[] \t\r\n\0"):
            raise ValueError("it names no host")
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MOST_PORT):
            raise ValueError(f"its port must be a number between 0 and {MOST_PORT}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NetAddress:
    kind: str  # of NET_KINDS
    place: HostPort

    @property
    def host(self) -> str:
        return self.place.host

    @property
    def port(self) -> int:
        return self.place.port

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}"


@dataclass(frozen=True, slots=True)
class FileAddress:
    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


def read_address(text: str) -> FileAddress | NetAddress:
    """Raises AddressInvalid."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest and "\0" not in rest:
        return FileAddress(Path(rest))
    return _net(text, FORMS)


def read_net_address(text: str) -> NetAddress:
    """Of two programs that may be on different machines. Raises AddressInvalid."""
    return _net(text, "tcp:HOST:PORT and tls:HOST:PORT")


def _net(text: str, forms: str) -> NetAddress:
    kind, _, rest = text.partition(":")
    if kind not in NET_KINDS or not rest:
        raise AddressInvalid(text, forms=forms)
    try:
        return NetAddress(kind, HostPort.read(rest))
    except ValueError as error:
        raise AddressInvalid(text, why=str(error), forms=forms) from error
