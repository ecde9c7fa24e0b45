"""Kernel tests run three ways, unchanged.

    TRITON_INTERPRET=1 pytest tests/kernels   the Triton kernels, interpreted on a CPU
    pytest tests/kernels                      on a CPU: the torch path; with CUDA: the kernels

New memory is poisoned with NaN, so that an element a kernel fails to write shows.
"""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", _poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", _poisoned(torch.empty_like))


def _poisoned(allocate):
    def poisoned(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    return poisoned


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
