"""One supervised program: at most one process of it at a time, its output passed on by line."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gateway

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TAIL_LINES = 50

Emit = Callable[[str, str], None]  # program's name, one line of its output


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str
    argv: tuple[str, ...]
    stop_seconds: float  # how long it may drain after SIGTERM before SIGKILL
    keep_open: tuple[int, ...] = ()  # descriptors it inherits


class Child:
    """Belongs to one event loop, in the thread that lives as long as the supervisor."""

    def __init__(self, program: Program, emit: Emit) -> None:
        self._program = program
        self._emit = emit
        self._process: asyncio.subprocess.Process | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def name(self) -> str:
        return self._program.name

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def last_line(self) -> str:
        """What the program said last: by our own habit, the reason it ended."""
        said = [line.strip() for line in self._tail if line.strip()]
        return said[-1] if said else "it printed nothing"

    async def start(self) -> None:
        self._tail.clear()
        self._process = await asyncio.create_subprocess_exec(
            *self._program.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=our_environment(),
            start_new_session=True,
            pass_fds=self._program.keep_open,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )
        assert self._process.stdout is not None
        self._forwarding = asyncio.create_task(self._forward(self._process.stdout))

    async def wait(self) -> int:
        """The exit code; negative is the signal that killed it."""
        assert self._process is not None
        code = await self._process.wait()
        await self._finish_output()
        return code

    async def stop(self) -> None:
        """SIGTERM, time to drain, then SIGKILL. Does nothing when no process runs."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._program.stop_seconds):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await self._finish_output()

    def kill(self) -> None:
        """SIGKILL to the program and whatever it started."""
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _finish_output(self) -> None:
        if self._forwarding:  # a grandchild may hold the pipe open: do not wait for it
            await asyncio.wait({self._forwarding}, timeout=1.0)
            self._forwarding.cancel()

    async def _forward(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while block := await stream.read(1 << 16):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._line(line)
        if rest:
            self._line(rest)

    def _line(self, raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").rstrip("\r")
        self._tail.append(line)
        self._emit(self.name, line)


def our_environment() -> dict[str, str]:
    """An environment in which a program we start finds the packages that we are part of."""
    root = str(Path(gateway.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{inherited}" if inherited else root
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """For a new process to call before it becomes its program: a signal when we end."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def arm() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it ended before we asked
            os.kill(os.getpid(), number)

    return arm
