"""Reads a checkpoint into the operating system's memory while other things are done.

Weights are read through mapped memory, in the order in which layers want them: a disk is then asked
for little at a time, by one thread, once torch is imported. Read ahead they are there by then.
Needs no torch.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

THREADS = 4  # what keeps a local disk busy
BLOCK = 8 << 20  # bytes at a time
SHARE = 0.5  # of the memory that is available, at most

log = logging.getLogger(__name__)


class ReadingAhead:
    """``with`` it, the checkpoint's files are being read; what is left then is left."""

    def __init__(self, folder: Path, *, available: int | None = None) -> None:
        """``available``: bytes of memory; None: what the system says."""
        files = sorted(folder.glob("*.safetensors"))
        size = sum(file.stat().st_size for file in files)
        room = _available() if available is None else available
        self._files = SimpleQueue[Path]()
        self._stop = Event()
        self._bytes = [0] * THREADS
        if size > SHARE * room:
            log.info("weights are not read ahead: %d of %d bytes of memory", size, room)
            files = []
        for file in files:
            self._files.put(file)
        self._threads = [Thread(target=self._read, args=(n,), daemon=True) for n in range(THREADS)]

    @property
    def read(self) -> int:
        """Bytes so far."""
        return sum(self._bytes)

    def __enter__(self) -> "ReadingAhead":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def join(self) -> None:
        """Wait for the end of the last file."""
        for thread in self._threads:
            thread.join()

    def _read(self, number: int) -> None:
        block = bytearray(BLOCK)
        try:
            for file in self._next():
                with file.open("rb", buffering=0) as opened:
                    while (count := opened.readinto(block)) and not self._stop.is_set():
                        self._bytes[number] += count
        except OSError as error:  # whoever loads the file says it better
            log.debug("not read ahead: %s", error)

    def _next(self) -> Iterator[Path]:
        try:
            while not self._stop.is_set():
                yield self._files.get_nowait()
        except Empty:
            return


def _available() -> int:
    """Bytes of memory that can be had without taking them from anybody; 0 where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = next((line for line in lines if line.startswith("MemAvailable:")), "MemAvailable: 0 kB")
    return int(found.split()[1]) * 1024
