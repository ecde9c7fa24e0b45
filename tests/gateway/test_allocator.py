"""The allocator is told what to give back, unless the operator has told it already."""

import platform
import subprocess
import sys

import pytest

from gateway import allocator

# Threads that hold something each: how many arenas there are then, as malloc_info says.
ARENAS = """
import ctypes, sys, threading
from gateway import allocator

assert allocator.settle({}) is True
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
held, done = threading.Barrier(9), threading.Event()

def hold():
    libc.malloc(10_000)
    held.wait()
    done.wait()

threads = [threading.Thread(target=hold) for _ in range(8)]
for each in threads:
    each.start()
held.wait()
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
done.set()
"""


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_the_operators_own_choice_holds(name):
    assert allocator.settle({name: "1"}) is False


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library has no arenas")
def test_however_many_threads_there_are_they_share_two_arenas():
    told = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, check=True)
    assert told.stdout.count(b"<heap nr=") == allocator.ARENAS
