"""Memory of each member's device that the others reach, for sums by one launch (``peer_sum``).

Where a device's memory cannot be opened from another, say because they are not linked, there is
none, and all sums are NCCL's.
"""

import ctypes
import logging

import torch
import torch.distributed as dist

from kernels.peer_sum import PROGRAMS, Peers

ROOM = 4 << 20  # bytes of a sum
HANDLE = 64  # bytes of a CUDA memory handle
LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess

log = logging.getLogger(__name__)


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE)]


class PeerMemoryUnavailable(Exception):
    """This device's memory and another's cannot be reached from both."""


class _Runtime:
    """Of CUDA: what torch does not offer. Kept as long as the process lives, like what it maps."""

    def __init__(self) -> None:
        version = (torch.version.cuda or "").partition(".")[0]
        try:
            self._library = ctypes.CDLL(f"libcudart.so.{version}")  # torch has loaded it
        except OSError as error:
            raise PeerMemoryUnavailable(str(error)) from error
        self._library.cudaIpcOpenMemHandle.argtypes = [
            ctypes.POINTER(ctypes.c_void_p), _Handle, ctypes.c_uint,
        ]  # fmt: skip
        self._library.cudaGetErrorString.restype = ctypes.c_char_p

    def allocate(self, size: int) -> int:
        """The address of zeroed memory on the current device."""
        found = ctypes.c_void_p()
        self._do("cudaMalloc", ctypes.byref(found), ctypes.c_size_t(size))
        self._do("cudaMemset", found, 0, ctypes.c_size_t(size))
        return found.value or 0

    def handle(self, address: int) -> bytes:
        found = _Handle()
        self._do("cudaIpcGetMemHandle", ctypes.byref(found), ctypes.c_void_p(address))
        return bytes(found)

    def opened(self, handle: bytes) -> int:
        """The address at which another process's memory is found here."""
        found = ctypes.c_void_p()
        theirs = _Handle.from_buffer_copy(handle)
        self._do("cudaIpcOpenMemHandle", ctypes.byref(found), theirs, LAZY_PEER_ACCESS)
        return found.value or 0

    def _do(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            said = self._library.cudaGetErrorString(code)
            self._library.cudaGetLastError()  # is not to be found by whoever asks next
            raise PeerMemoryUnavailable(f"{name}: {said.decode()}")


def open_peers(member: int, size: int, device: torch.device) -> Peers | None:
    """All members at the same time; None for all where any of them cannot."""
    flags = size * PROGRAMS * 8
    addresses: list[int] = []
    try:
        runtime = _Runtime()
        own = runtime.allocate(2 * ROOM + flags)
        handle = runtime.handle(own)
    except PeerMemoryUnavailable as error:
        log.warning("sums are NCCL's alone: %s", error)
        handle = bytes(HANDLE)
    given = torch.frombuffer(bytearray(handle), dtype=torch.uint8).to(device)
    handles = [torch.empty_like(given) for _ in range(size)]
    dist.all_gather(handles, given)
    if any(not bool(each.any()) for each in handles):
        return None
    try:
        addresses = [
            own if i == member else runtime.opened(bytes(each.cpu().numpy()))
            for i, each in enumerate(handles)
        ]
    except PeerMemoryUnavailable as error:
        log.warning("sums are NCCL's alone: %s", error)
    fine = torch.tensor([len(addresses) == size], dtype=torch.int64, device=device)
    dist.all_reduce(fine, op=dist.ReduceOp.MIN)
    if not bool(fine):
        return None
    buffers = torch.tensor(addresses, dtype=torch.int64, device=device)
    launched = torch.zeros(PROGRAMS, dtype=torch.int64, device=device)
    return Peers(member, buffers, buffers + 2 * ROOM, launched, ROOM)
