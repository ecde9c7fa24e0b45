"""Two engines of one model in processes of their own, on a GPU each or sharing the CPU."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.client import EngineClient
from engine.stream import EngineLost

START_S = 540.0
STOP_S = 20.0


class PairFailed(RuntimeError):
    """An engine does not start, or does not last."""


class EnginePair:
    """Both give and take. Started by entering; ``clients`` are connections to each."""

    def __init__(self, model: Path, flags: Sequence[str], *, gpus: bool) -> None:
        self._model, self._flags, self._gpus = model, flags, gpus
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stack = AsyncExitStack()
        self.clients: list[EngineClient] = []
        self._logs: list[Path] = []

    async def __aenter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pair-")))
        try:
            for number in range(2):
                self._processes.append(self._start(folder, number))
            for number in range(2):
                client = await self._connect(folder, number)
                self.clients.append(await self._stack.enter_async_context(client))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._stop()

    def logged(self, words: str) -> list[str]:
        """Lines of their logs with these words."""
        lines = [line for log in self._logs for line in log.read_text(errors="replace").split("\n")]
        return [line for line in lines if words in line]

    def kill(self, number: int) -> None:
        """An engine is gone at once."""
        self._processes[number].kill()

    def _start(self, folder: Path, number: int) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = str(number)
        command = [
            sys.executable, "-m", "engine", "serve", "--model", str(self._model),
            "--name", f"engine-{number}", "--listen", f"unix:{folder}/{number}.sock",
            "--handoff-listen", "tcp:127.0.0.1:0", *self._flags,
        ]  # fmt: skip
        self._logs.append(folder / f"{number}.log")
        log = self._logs[-1].open("wb")
        self._stack.callback(log.close)
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603

    async def _connect(self, folder: Path, number: int) -> EngineClient:
        end = time.monotonic() + START_S
        while True:
            try:
                return await EngineClient.connect(f"unix:{folder}/{number}.sock", gateway="bench")
            except EngineLost as lost:
                dead = self._processes[number].poll() is not None
                if dead or time.monotonic() > end:
                    said = (folder / f"{number}.log").read_text(errors="replace")[-2000:]
                    raise PairFailed(f"engine {number} does not start: {said}") from lost
                await asyncio.sleep(0.2)

    async def _stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                await asyncio.to_thread(process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        await self._stack.aclose()
