"""``python -m engine.compiler LANES``: compiles kernels that another process asks for.

A line on stdin is a kernel, ``Wanted``; a line on stdout says how it went: its number, and the
reason where it failed. What was compiled lies in Triton's cache, where the asking process finds it.
Needs no GPU. Each kernel has a process of its own, forked from one that has imported everything,
since much of a compiler's work holds Python's lock. Ends with its stdin, whoever closes that.
"""

import json
import os
import selectors
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import IO, Any

READ = 1 << 16  # bytes at a time
MOST_SAID = 400  # characters of a reason


@dataclass(frozen=True, slots=True)
class Wanted:
    """``facts``: Triton's own description of a kernel, JSON."""

    number: int
    module: str
    kernel: str
    facts: str
    target: tuple[str, int, int]  # a device, as Triton names it

    @property
    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class Lanes:
    """Runs so many compilations at a time. Belongs to one thread, the only one."""

    def __init__(self, lanes: int, asked: int, told: IO[str]) -> None:
        """``asked``: a file descriptor."""
        self._lanes, self._asked, self._told = lanes, asked, told
        self._rest = b""  # of a line that is not complete
        self._waiting: deque[Wanted] = deque()
        self._running: dict[int, tuple[int, int]] = {}  # process and number, by its pipe
        self._ready = selectors.DefaultSelector()

    def run(self) -> None:
        """Until nobody asks any more."""
        self._ready.register(self._asked, selectors.EVENT_READ)
        while True:
            for key, _ in self._ready.select():
                if key.fd != self._asked:
                    self._finish(key.fd)
                elif read := os.read(self._asked, READ):
                    self._waiting.extend(self._lines(read))
                else:
                    return
            while self._waiting and len(self._running) < self._lanes:
                self._begin(self._waiting.popleft())

    def _lines(self, read: bytes) -> Iterator[Wanted]:
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            facts = json.loads(line)
            yield Wanted(**facts | {"target": tuple(facts["target"])})

    def _begin(self, wanted: Wanted) -> None:
        out, into = os.pipe()
        process = os.fork()
        if process == 0:
            os.write(into, _tried(wanted).encode())
            os._exit(0)
        os.close(into)
        self._running[out] = process, wanted.number
        self._ready.register(out, selectors.EVENT_READ)

    def _finish(self, out: int) -> None:
        process, number = self._running.pop(out)
        self._ready.unregister(out)
        reason = os.read(out, READ).decode(errors="replace")
        os.close(out)
        _, status = os.waitpid(process, 0)
        reason = reason or (f"ended with status {status}" if status else "")
        self._told.write(f"{number} {reason}\n")
        self._told.flush()


def _tried(wanted: Wanted) -> str:
    """The reason where it failed: whoever asked meets the error again by itself."""
    try:
        _compile(wanted)
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:MOST_SAID]
    return ""


def _compile(wanted: Wanted) -> None:
    """What ``JITFunction.preload`` does, for a device that this process need not have."""
    import triton
    from triton import language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel: Any = getattr(import_module(wanted.module), wanted.kernel)
    facts = json.loads(wanted.facts)

    def constant(value: Any) -> Any:
        if tl.dtype.is_dtype(value):
            return tl.dtype(value)
        return tl.constexpr(value["constexpr"]) if isinstance(value, dict) else value

    keys = [tuple(key) for key in facts["constant_keys"]]
    constants = dict(zip(keys, map(constant, facts["constant_vals"]), strict=True))
    hints = dict(zip(map(tuple, facts["attrs_keys"]), facts["attrs_vals"], strict=True))
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(
        kernel, facts["signature"], constants, hints
    )
    options = {name: _tuple(value) for name, value in facts["options"].items()}
    triton.compile(source, target=GPUTarget(*wanted.target), options=options)


def _tuple(value: Any) -> Any:
    """JSON has lists where Triton has tuples."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def main(lanes: int) -> None:
    """What is imported and worked out here, no fork has to."""
    from triton.runtime.cache import triton_key

    import kernels.w4_hopper  # noqa: F401

    triton_key()
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a compiler prints is no answer
    Lanes(lanes, 0, told).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
