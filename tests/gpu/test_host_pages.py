"""Swapping pages on a side stream, beside passes that read and write them."""

from pathlib import Path

import pytest
import torch

from engine.adapter_memory import AdapterMemory
from engine.adapter_table import AdapterTable
from engine.host_pages import HostPages
from engine.models.spec import ModelSpec
from engine.step import StepPlan
from tests.engine.checkpoints import Layout, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig, chunk
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
        memory.launch(StepPlan([chunk([7], [3, 5])]))
        memory.pool[3] = float(turn)  # a pass writes the page
        host.out([3], [turn % PAGES])
        memory.await_copies()
        memory.pool[3] = -1.0  # whoever has it next
        host.back([turn % PAGES], [5])
        memory.await_copies()
        found = memory.pool[5].clone()  # a pass reads what came back
        assert bool((found == turn).all())


@pytest.mark.gpu
def test_an_adapter_comes_beside_a_pass_and_after_one_that_touches_its_pages(
    spec: ModelSpec,
) -> None:
    memory = memory_of(spec, "cuda")
    table = AdapterTable(spec, memory.pool.device)
    adapters = AdapterMemory(spec, memory, table)
    laid = adapters.lay_out(random_adapter(spec, 4, dtype=torch.float32))
    pages = list(range(laid.pages))
    assert laid.pages < PAGES
    busy = torch.randn(4096, 4096, device="cuda")
    memory.pool[: laid.pages] = 0.0
    torch.cuda.synchronize()
    for turn in range(10):
        touched = turn % 2 == 0
        memory.launch(StepPlan([chunk([7], pages if touched else [PAGES - 1])]))
        for _ in range(8):
            busy = busy @ busy * 1e-4
        before = memory.pool[: laid.pages].clone() if touched else None  # what a pass reads late
        adapters.place(0, laid, pages)
        table.await_rows([0])
        assert torch.equal(memory.pool[: laid.pages].cpu(), laid.host)
        assert before is None or bool((before == -turn).all())
        adapters.clear(0)
        torch.cuda.synchronize()
        memory.pool[: laid.pages] = float(-turn - 2 if touched else -turn - 1)
        torch.cuda.synchronize()
