"""Has glibc's allocator give back what requests have given back.

Left alone it makes an arena for every other thread, up to eight for each core, and each keeps what
it held at its fullest; and whoever frees a large block once has blocks of that size kept for good.
A gateway's threads allocate little at a time, so two arenas are enough: the loop's and another.
"""

import ctypes
from collections.abc import Mapping

# From malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
ARENAS = 2
LARGE = 128 << 10  # bytes; such blocks come from the system, and return to it at once
SPARE = 1 << 20  # bytes that may be free at an arena's end


def settle(environment: Mapping[str, str]) -> bool:
    """Before there are threads. False: another allocator, or the operator has chosen."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")) for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    chosen = ((_ARENA_MAX, ARENAS), (_MMAP_THRESHOLD, LARGE), (_TRIM_THRESHOLD, SPARE))
    taken = [mallopt(option, value) == 1 for option, value in chosen]
    return all(taken)
