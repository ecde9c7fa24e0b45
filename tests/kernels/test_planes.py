import pytest
import torch

from kernels.planes import summed, total
from tests.kernels.tolerance import assert_near


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("adapted", [False, True])
def test_a_sum_of_planes_is_rounded_once(dtype, parts, adapted, device):
    random = torch.Generator().manual_seed(parts)
    planes = torch.randn(parts, 3, 257, generator=random).to(device)
    addend = torch.randn(3, 257, generator=random).to(device, dtype) if adapted else None
    assert_near(summed(planes, addend, dtype), total(planes, addend).to(dtype), dtype)


def test_a_sum_lies_in_memory_of_its_own(device):
    planes = torch.randn(1, 3, 64, device=device)
    summed(planes, None, torch.float32).zero_()
    assert planes.any()
