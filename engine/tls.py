"""TLS whose files may be replaced while it is used, and tokens that may be too.

A connection takes what lies in the files when it begins, and keeps that to its end: rotating a
certificate, an authority or a token drops nobody. The files are looked at by the first connection
that begins a second after the last look, so nothing has to be told and no task runs. New files
that do not fit one another (one is written before the other) are looked at again later; until
then the old ones hold.
"""

import hmac
import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

LOOK_S = 1.0
HANDSHAKE_S = 10.0
T = TypeVar("T")
log = logging.getLogger(__name__)


class TlsInvalid(ValueError):
    """Files of which no TLS, or no token, can be made. The message names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of one end. ``authority``: whose certificates the other end must show."""

    certificate: Path | None = None  # with the chain up to the authority, leaf first
    key: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise TlsInvalid("a certificate needs its key, and a key its certificate: give both")

    @property
    def all(self) -> tuple[Path, ...]:
        return tuple(f for f in (self.certificate, self.key, self.authority) if f is not None)

    def fill(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Raises TlsInvalid."""
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
            if self.authority is not None:
                context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(map(str, self.all))
            raise TlsInvalid(f"no TLS can be made of {names}: {error}") from error
        return context


class Fresh(Generic[T]):
    """What is made of files, made anew once they have changed. Belongs to one event loop."""

    def __init__(
        self, files: tuple[Path, ...], make: Callable[[], T], *, look_s: float = LOOK_S
    ) -> None:
        """Raises TlsInvalid: the first time there is nothing older to go on with."""
        self._files, self._make, self._look_s = files, make, look_s
        self._seen, self._value = self._state(), make()
        self._next = time.monotonic() + look_s
        self._complained: object = None

    def get(self) -> T:
        if self._files and time.monotonic() >= self._next:
            self._look()
            self._next = time.monotonic() + self._look_s
        return self._value

    def _look(self) -> None:
        state = self._state()
        if state == self._seen:
            return
        try:
            self._value = self._make()
        except TlsInvalid as error:
            if state != self._complained:
                log.error("the old ones hold: %s", error)
            self._complained = state
        else:
            self._seen = state
            log.info("taken anew: %s", ", ".join(map(str, self._files)))

    def _state(self) -> tuple[object, ...]:
        """Changes where a file does, and where a link on the way to it leads elsewhere."""
        return tuple(map(_stamp, self._files))


def _stamp(file: Path) -> object:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class ServerTls:
    """Of a listening port; ``context`` is for as long as it listens."""

    def __init__(self, files: TlsFiles, *, look_s: float = LOOK_S) -> None:
        """With an authority, only who shows a certificate of it is let in. Raises TlsInvalid."""
        if files.certificate is None:
            raise TlsInvalid("to listen with TLS, give a certificate and its key")
        self._files = files
        self._fresh = Fresh(files.all, self._make, look_s=look_s)
        self.context = self._make()
        self.context.sni_callback = self._choose

    def _make(self) -> ssl.SSLContext:
        context = self._files.fill(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        if self._files.authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _choose(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = self._fresh.get()


class ClientTls:
    """Of what dials. Without an authority, the system's are believed."""

    def __init__(
        self, files: TlsFiles, *, server_name: str | None = None, look_s: float = LOOK_S
    ) -> None:
        """``server_name``: what certificates must be for, if not the address's host: engines that
        come and go have one name and many addresses. Raises TlsInvalid."""
        self.server_name = server_name
        self._files = files
        self._fresh = Fresh(files.all, self._make, look_s=look_s)

    @property
    def context(self) -> ssl.SSLContext:
        """For one connection."""
        return self._fresh.get()

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._files.authority is None:
            context.load_default_certs()
        return self._files.fill(context)


class Tokens:
    """A file with a token a line: the first is shown to others, any is accepted from them.

    So a token is rotated by putting the new one second at those who ask for it, first at those who
    show it, and then taking away the old one.
    """

    def __init__(self, file: Path, *, look_s: float = LOOK_S) -> None:
        """Raises TlsInvalid."""
        self._file = file
        self._fresh = Fresh((file,), self._read, look_s=look_s)

    @property
    def shown(self) -> str:
        return self._fresh.get()[0]

    def accepts(self, token: str | None) -> bool:
        given = (token or "").encode()
        return any(hmac.compare_digest(given, one.encode()) for one in self._fresh.get())

    def _read(self) -> tuple[str, ...]:
        try:
            found = tuple(self._file.read_text("utf-8").split())
        except (OSError, UnicodeDecodeError) as error:
            raise TlsInvalid(f"the token file {self._file} cannot be read: {error}") from error
        if not found:
            raise TlsInvalid(f"the token file {self._file} is empty")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a gateway shows its engines, and asks of them."""

    tls: ClientTls | None = None
    tokens: Tokens | None = None


NO_CREDENTIALS = Credentials()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What an engine asks of gateways: TLS and tokens; None where it asks for none."""

    tls: ServerTls | None = None
    tokens: Tokens | None = None


NO_GUARD = Guard()
