"""Reads a page of another process's pool, and says what is in it: ``PATH HANDLE PAGE``."""

import sys
import time
from pathlib import Path

from engine.handoff.copies import POLL_S
from engine.handoff.pages import TransferPages
from tests.engine.rig import Rig
from tests.engine.test_host_pages import memory_of


def main(path: str, handle: str, page: str) -> None:
    memory = memory_of(Rig(Path(path)).spec, "cuda")
    transfer, pool = TransferPages(memory, 4 << 20, direct=True), bytes.fromhex(handle)
    if not transfer.reads(pool):
        sys.stdout.write("cannot be read\n")
        return
    ended = transfer.read(pool, int(page), 0)
    while not ended():
        time.sleep(POLL_S)
    memory.await_copies()
    sys.stdout.write(f"{sorted(set(memory.pool[0].tolist()))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
