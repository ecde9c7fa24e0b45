"""How near a kernel must come to its reference, by type."""

import torch

_RELATIVE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
_ABSOLUTE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(actual, expected, rtol=_RELATIVE[dtype], atol=_ABSOLUTE[dtype])
