"""The process that compiles kernels for this one (``engine.compiler``), as its client."""

import logging
import os
import subprocess
import sys
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from threading import Lock, Thread

import engine
from engine.compiler import Wanted

LEAVE_S = 5.0  # seconds a process without work has to end

log = logging.getLogger(__name__)


class NotCompiled(Exception):
    """A kernel could not be compiled elsewhere; the message says why."""


class Compilers:
    """Compiles into Triton's cache. Thread-safe. Ends with this process, however that ends."""

    def __init__(self, lanes: int) -> None:
        """``lanes``: kernels at a time."""
        root = str(Path(engine.__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "engine.compiler", str(lanes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's interrupt is for this process
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        self._numbers, self._open, self._lock = count(), dict[int, Future[None]](), Lock()
        self._ended = False
        self._listening = Thread(target=self._listen, name="compilers", daemon=True)
        self._listening.start()

    def compile(
        self, module: str, kernel: str, facts: str, target: tuple[str, int, int]
    ) -> Future[None]:
        """Of ``Wanted``. Fails with NotCompiled."""
        found, number = Future[None](), next(self._numbers)
        line = Wanted(number, module, kernel, facts, target).line
        with self._lock:
            if not self._ended:
                try:
                    assert self._process.stdin is not None
                    self._process.stdin.write(line)
                    self._process.stdin.flush()
                    self._open[number] = found
                    return found
                except OSError:
                    self._ended = True
        found.set_exception(NotCompiled("the process has ended"))
        return found

    def close(self) -> None:
        """What is under way is not waited for."""
        assert self._process.stdin is not None
        with self._lock:
            self._ended = True
            try:
                self._process.stdin.close()
            except OSError:  # it ended before it read everything
                log.debug("compilers were gone before they were told to go")
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listening.join(LEAVE_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as told:
            for line in told:
                number, _, reason = line.decode().rstrip("\n").partition(" ")
                with self._lock:
                    found = self._open.pop(int(number))
                if reason:
                    found.set_exception(NotCompiled(reason))
                else:
                    found.set_result(None)
        with self._lock:
            self._ended = True
            left, self._open = self._open, {}
        for found in left.values():
            found.set_exception(NotCompiled("the process has ended"))
