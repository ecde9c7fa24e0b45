"""Swapping pages on a side stream, beside passes that read and write them."""

from pathlib import Path

import pytest
import torch

from engine.host_pages import HostPages
from engine.models.spec import ModelSpec
from tests.engine.checkpoints import Layout, write_checkpoint
from tests.engine.rig import Rig
from tests.engine.test_host_pages import PAGES, SHAPE, memory_of


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return Rig(write_checkpoint(tmp_path, SHAPE, Layout("gptq", 32)).path).spec


@pytest.mark.gpu
def test_a_device_reads_no_page_before_its_copy_and_writes_none_before_it_left(
    spec: ModelSpec,
) -> None:
    memory = memory_of(spec, "cuda")
    host = HostPages(memory, PAGES * memory.pool[0].nbytes)
    busy = torch.randn(4096, 4096, device="cuda")
    for turn in range(20):
        for _ in range(4):
            busy = busy @ busy * 1e-4  # what follows is launched long before it runs
        memory.pool[3] = float(turn)  # a pass writes the page
        host.out([3], [turn % PAGES])
        memory.await_copies()
        memory.pool[3] = -1.0  # whoever has it next
        host.back([turn % PAGES], [5])
        memory.await_copies()
        found = memory.pool[5].clone()  # a pass reads what came back
        assert bool((found == turn).all())
