"""Writes the usage log: what has been recorded survives a kill -9, and an end a power cut too.

Records are handed to the operating system at once, a beginning before any engine hears of the
request: so no killed gateway leaves work behind that nobody is billed for. One thread syncs; while
it waits for the disk ends gather, so that one ``fdatasync`` (0.2-0.3 ms on a good disk) serves all
that came meanwhile, the beginnings before them included. It does nothing else as long as all is
well, for whatever it does it takes the interpreter from the loop. A batch that could not be written
or synced is kept and written again, in a new segment; until it succeeds nothing is admitted.
"""

import asyncio
import contextlib
import logging
import os
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from gateway.config import ConfigError
from gateway.errors import UsageLogUnavailable
from gateway.usage.log import UsageLog, frame
from gateway.usage.record import Finished, Started

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
RETRY_S = 0.5


class Recorder:
    """Belongs to one event loop; its thread touches only what ``_queue`` and ``_guard`` guard.

    recorder = await Recorder.open(UsageLog(settings.usage_log_dir))
    await recorder.started(record)    # raises UsageLogUnavailable: do not serve
    await recorder.finished(record)   # returns when it is durable
    await recorder.close()
    """

    def __init__(self, usage_log: UsageLog, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        lock = usage_log.lock()
        if lock is None:
            raise ConfigError(f"{usage_log.folder}: another gateway is using this data directory")
        self.log = usage_log
        self.first_segment = max(usage_log.segments(), default=0) + 1  # of this run
        self._lock = lock
        self._segment = self.first_segment - 1
        self._segment_bytes = segment_bytes
        self._guard = threading.Lock()  # of the file's end; not held while the disk syncs
        self._file: int | None = None
        self._written = 0
        self._torn = False  # the file may end in a part of a frame
        self._loop = asyncio.get_running_loop()
        self._queue = threading.Lock()
        self._calls: SimpleQueue[None] = SimpleQueue()  # to the thread: there is work
        self._called = False  # it has been, or will be in this turn
        self._pending: list[tuple[bytes, bool]] = []  # and whether it was written, but not synced
        self._waiting: list[asyncio.Future[None]] = []
        self._closing = False
        self._healthy = True
        self._thread = threading.Thread(target=self._run, name="usage-log", daemon=True)

    @classmethod
    async def open(cls, usage_log: UsageLog, *, segment_bytes: int = SEGMENT_BYTES) -> Self:
        """Raises ConfigError when another process has the log."""
        recorder = cls(usage_log, segment_bytes=segment_bytes)
        with contextlib.suppress(OSError):  # then the thread tries again, and says so
            recorder._open_next_segment()
        recorder._thread.start()
        return recorder

    @property
    def healthy(self) -> bool:
        return self._healthy

    async def started(self, record: Started) -> None:
        """Survives a kill -9 when this returns, and a power cut no later than its Finished.

        Raises UsageLogUnavailable while the disk refuses records; the caller must not serve.
        """
        data = frame(record)
        if not self._healthy or not self._write_now(data):
            self._append(data, None)
            raise UsageLogUnavailable("Usage cannot be recorded at the moment.", retry_after=1.0)

    def _write_now(self, data: bytes) -> bool:
        """One short write, to memory as a rule. Never waits for the disk to sync."""
        with self._guard:
            if self._file is None or self._torn:  # nobody reads on behind a torn frame
                return False
            try:
                whole = os.write(self._file, data) == len(data)
            except OSError:
                whole = False
            self._written += len(data)
            self._torn = self._torn or not whole
            return whole

    async def finished(self, record: Finished) -> None:
        """Raises UsageLogUnavailable when the disk refuses it; it is kept and tried again."""
        durable, data = self._loop.create_future(), frame(record)
        self._append(data, durable, written=self._healthy and self._write_now(data))
        await durable

    async def close(self) -> None:
        """Write what is pending, then let the log go. What cannot be written is reported."""
        with self._queue:
            self._closing = True
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)
        if self._file is not None:
            os.close(self._file)
        self._lock.release()

    def _append(
        self, data: bytes, durable: asyncio.Future[None] | None, *, written: bool = False
    ) -> None:
        with self._queue:
            self._pending.append((data, written))
            if durable is not None:
                self._waiting.append(durable)
            called, self._called = self._called, True
        if not called:
            self._loop.call_soon(self._calls.put, None)

    def _run(self) -> None:
        while True:
            with self._queue:
                batch, self._pending = self._pending, []
                waiting, self._waiting = self._waiting, []
                closing = self._closing
                self._called = bool(batch)
            if not batch and not closing:
                self._calls.get()
                continue
            error = self._sync(batch) if batch else None
            self._report(error, waiting)
            if error is not None:
                self._put_back(batch)
            if closing and (error is not None or not self._pending):
                return

    def _sync(self, batch: list[tuple[bytes, bool]]) -> OSError | None:
        """All of it on the disk, or an error: then each is to be written again."""
        try:
            with self._guard:
                if self._file is None or self._torn:
                    self._open_next_segment()
                    data = b"".join(each for each, _ in batch)
                else:
                    if self._written >= self._segment_bytes:
                        os.fdatasync(self._file)
                        self._open_next_segment()
                    data = b"".join(each for each, written in batch if not written)
                assert self._file is not None
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
                self._written += len(data)
                descriptor = self._file
            os.fdatasync(descriptor)
        except OSError as error:
            with self._guard:
                self._torn = True  # its end may be: go on in another
            return error
        return None

    def _open_next_segment(self) -> None:
        """What was written to the last one is on the disk before anything is in this one."""
        if self._file is not None:
            descriptor, self._file = self._file, None
            with contextlib.suppress(OSError):  # a beginning at worst: the ends were synced
                os.fdatasync(descriptor)
            os.close(descriptor)
        self._segment += 1
        path = self.log.path(self._segment)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._written, self._torn = 0, False
        _sync_folder(path.parent)

    def _put_back(self, batch: list[tuple[bytes, bool]]) -> None:
        with self._queue:
            self._pending[:0] = [(data, False) for data, _ in batch]
            closing = self._closing
        if not closing:
            with contextlib.suppress(Empty):  # whatever was called for is tried again anyway
                self._calls.get(timeout=RETRY_S)

    def _report(self, error: OSError | None, waiting: list[asyncio.Future[None]]) -> None:
        if error is not None and self._healthy:
            log.error("usage log cannot be written, refusing requests: %s", error)
        elif error is None and not self._healthy:
            log.warning("usage log is written again")
        self._healthy = error is None
        if waiting:
            self._loop.call_soon_threadsafe(_resolve, waiting, error)


def _resolve(waiting: list[asyncio.Future[None]], error: OSError | None) -> None:
    for future in waiting:
        if future.done():  # its request was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(UsageLogUnavailable(f"Usage cannot be recorded: {error.strerror}"))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
