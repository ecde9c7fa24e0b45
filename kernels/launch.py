"""Where an op runs, and the few facts of the device that its launch needs.

Tensors on a CUDA device go to the Triton kernels, and so does everything while Triton's
interpreter is on (``TRITON_INTERPRET=1``, for tests). All other tensors take the torch path.
"""

import functools
from typing import TypedDict

import torch
import triton
import triton.language as tl

MIN_DOT = 16  # smallest side of a tensor-core tile

_TRITON_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


class KernelArgumentError(ValueError):
    """An op was called with tensors it does not take. The message names the argument."""


def require(condition: bool, message: str) -> None:
    """Raise KernelArgumentError(message) unless the condition holds."""
    if not condition:
        raise KernelArgumentError(message)


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter instead of being compiled."""
    return bool(triton.knobs.runtime.interpret)


def use_triton(tensor: torch.Tensor) -> bool:
    """Whether an op on this tensor launches its Triton kernel."""
    return tensor.is_cuda or interpreting()


def compute_type(dtype: torch.dtype) -> tl.dtype:
    """The type matrix products are fed with.

    The interpreter multiplies the raw bits of bfloat16, so there everything is widened first.
    """
    return tl.float32 if interpreting() else _TRITON_TYPES[dtype]


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; 1 for n < 1."""
    return 1 if n <= 1 else 1 << (n - 1).bit_length()


def cdiv(n: int, d: int) -> int:
    """n / d rounded up."""
    return -(-n // d)


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple that is at least n."""
    return cdiv(n, multiple) * multiple


@functools.cache
def device_name(device: torch.device) -> str:
    """Lower-case name of a CUDA device, or "cpu"."""
    return torch.cuda.get_device_name(device).lower() if device.type == "cuda" else "cpu"


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many programs the device runs at once at one per multiprocessor; 1 on a CPU."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that one program may have; on a CPU what every supported device has."""
    if device.type != "cuda":
        return 96 << 10
    of_device = torch.cuda.get_device_properties(device)
    return int(of_device.shared_memory_per_multiprocessor) - 1024  # the driver's own


class Chain(TypedDict):
    """Launch options of a kernel in a chain; see ``chained``."""

    CHAINED: bool
    launch_pdl: bool


def chained(tensor: torch.Tensor, *, chain: bool = True) -> Chain:
    """Options with which a kernel starts while the one before it still runs.

    Where the device can (Hopper and later), the kernel is set up and may read weights before its
    predecessor has ended. Its side of the bargain, kept wherever CHAINED is true:

    - ``gdc_wait`` before it reads or writes anything but constants. Then all that was launched
      before it has ended, because each of those kernels waited as well.
    - ``gdc_launch_dependents`` as soon as the next kernel may take what room is left.

    A kernel launched without these options waits for everything and holds nothing up. One that
    reads what two streams have made is such a kernel.

    What adapters add is made by two kernels around the base's product, one before and one after.
    They release at once and await what they read by ``signals``; the one after waits at its end,
    so that whoever waits for it waits for the product and for all before.
    """
    able = chain and not interpreting() and tensor.is_cuda and _capability(tensor.device) >= (9, 0)
    return {"CHAINED": able, "launch_pdl": able}


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
