"""Keeps a few programs running: starts them, restarts what dies, stops them in order.

Rules
-----
* Until the probe has answered once, any exit is a failed start: the supervisor stops everything
  and raises ``StartFailed`` with the program's last line. After that an exit is restarted.
* Programs run in sessions of their own, so a Ctrl-C in the terminal reaches the supervisor alone
  and it stops them one after another, in the order given.
* Should the supervisor itself be killed, the kernel sends its programs SIGTERM: no orphans.

Everything here belongs to one event loop in the main thread.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

from gateway.cli.child import Child

POLL_SECONDS = 0.1

Probe = Callable[[], Awaitable[bool]]
Say = Callable[[str], None]


class StartFailed(Exception):
    """A program ended before the server had answered once."""

    def __init__(self, name: str, code: int, reason: str) -> None:
        super().__init__(f"the {name} could not start (exit code {code}): {reason}")
        self.name, self.code, self.reason = name, code, reason


class _Stopped(Exception):
    """A signal asked for the end; carries nothing, unwinds the task group."""


class Backoff:
    """How long to wait before the next start of a program that died."""

    def __init__(self, *, first: float = 0.5, most: float = 30.0, healthy: float = 60.0) -> None:
        self._first, self._most, self._healthy = first, most, healthy  # seconds
        self._next = first

    def after(self, uptime: float) -> float:
        """Seconds to wait, given how long the program ran. Doubles until a healthy run."""
        if uptime >= self._healthy:
            self._next = self._first
        delay, self._next = self._next, min(self._next * 2, self._most)
        return delay


class Supervisor:
    def __init__(self, children: Sequence[Child], *, probe: Probe, say: Say) -> None:
        """``children`` in the order they are stopped; they are started together."""
        self._children = children
        self._probe = probe
        self._say = say
        self._stop = asyncio.Event()
        self._answered = False

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until a signal asks to stop. Raises StartFailed; leaves no process behind."""
        self._listen_for_signals()
        try:
            async with asyncio.TaskGroup() as group:
                for child in self._children:
                    group.create_task(self._keep(child))
                group.create_task(self._announce(on_ready))
                group.create_task(self._until_stopped())
        except* _Stopped:
            self._say("stopping")
        except* StartFailed as failures:
            raise failures.exceptions[0] from None
        finally:
            for child in self._children:
                await child.stop()

    async def _keep(self, child: Child) -> None:
        backoff = Backoff()
        while True:
            started = time.monotonic()
            await child.start()
            code = await child.wait()
            if not self._answered:
                raise StartFailed(child.name, code, child.last_line())
            delay = backoff.after(time.monotonic() - started)
            self._say(f"the {child.name} ended ({_describe(code)}); restarting in {delay:g} s")
            await asyncio.sleep(delay)

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        while True:
            if await self._probe():
                break
            await asyncio.sleep(POLL_SECONDS)
        self._answered = True
        on_ready()

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        raise _Stopped

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self._stop.is_set():  # asked twice: do not wait for anything
            for child in self._children:
                child.kill()
        self._stop.set()


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
