"""What an object holds: whatever can be reached from it, however plain, but for code and loops.

Unlike the interpreter's count of blocks it is the same whatever other threads and tests do.
"""

import asyncio
import gc
import threading
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType

LEFT_OUT = (
    ModuleType, type, FunctionType, BuiltinFunctionType, FrameType, asyncio.AbstractEventLoop,
    threading.Thread,
)  # fmt: skip


def reachable(*roots: object) -> int:
    """How many objects."""
    seen, ahead = set[int](), list(roots)
    while ahead:
        each = ahead.pop()
        if id(each) not in seen and not isinstance(each, LEFT_OUT):
            seen.add(id(each))
            ahead += gc.get_referents(each)
    return len(seen)
