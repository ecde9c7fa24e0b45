"""The actor: one engine in a process of its own, on whatever node Ray put us.

An engine that ends is not started again here: its actor is given up, and another is placed, perhaps
on another node. If the actor's process dies, the kernel tells the engine to end.
"""

import ctypes
import signal
import socket
import subprocess
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
LISTEN = "{listen}"  # in a command: the address at which the engine is to be found


class EngineProcess:
    """Made remote by ``engines.py``. Its methods run one after another, in one thread."""

    def __init__(self, command: Sequence[str], host: str) -> None:
        """``host``: of this node, as others reach it."""
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        self._address = f"tcp:{host}:{port}"
        words = [word.replace(LISTEN, self._address) for word in command]
        self._process = subprocess.Popen(words, preexec_fn=_end_with_parent)  # noqa: S603

    def address(self) -> str:
        return self._address

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        """It finishes what it has, and ends."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
