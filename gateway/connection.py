"""One connection of a client, as uvicorn reads it; it also tells who asks when its client leaves.

ASGI tells that to whoever waits for the next message. A task that waits for it beside each request
costs more than reading the request does, so here one call is made instead.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LEAVING = "loratorio.leaving"  # the extension's name in an ASGI scope


class Leaving:
    """Of one connection: whether its client is gone. One at a time asks to be told."""

    __slots__ = ("_tell", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._tell: Callable[[], None] | None = None

    def watch(self, tell: Callable[[], None]) -> None:
        """It is called once, at once where the client is gone already."""
        if self.gone:
            tell()
        else:
            self._tell = tell

    def forget(self) -> None:
        self._tell = None

    def happen(self) -> None:
        """Called by the connection."""
        tell, self._tell = self._tell, None
        self.gone = True
        if tell is not None:
            tell()


class ClientConnection(HttpToolsProtocol):
    """Belongs to one event loop."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._leaving = Leaving()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {LEAVING: self._leaving}  # type: ignore[dict-item]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leaving.happen()


def leaving_of(scope: MutableMapping[str, Any]) -> Leaving | None:
    """None: another server has the connection."""
    found: Leaving | None = (scope.get("extensions") or {}).get(LEAVING)
    return found
