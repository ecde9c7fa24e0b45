"""Pages copied to host memory and back hold what they held, in the order it was asked for."""

import pytest
import torch

from engine.host_pages import HostPages
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.step import StepPlan
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.rig import Rig, chunk

SHAPE = Shape(hidden=128, inner=160, heads=4, kv_heads=2, head_dim=32, layers=2, vocab=256)
PAGES = 8


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    path = write_checkpoint(tmp_path_factory.mktemp("m"), SHAPE, Layout("gptq", 32)).path
    return Rig(path).spec


def memory_of(spec: ModelSpec, device: str) -> PageMemory:
    memory = PageMemory(spec, 16, num_pages=PAGES, dtype=torch.float32, device=torch.device(device))
    for page in range(PAGES):
        memory.pool[page] = page + 1
    return memory


def test_pages_come_back_wherever_they_are_wanted(spec: ModelSpec) -> None:
    memory = memory_of(spec, "cpu")
    host = HostPages(memory, 3 * memory.pool[0].nbytes)
    assert host.slots == 3
    assert 0 < host.page_s < 1
    host.out([5, 2], [2, 0])
    memory.pool[[5, 2]] = -1.0
    host.back([0, 2], [7, 1])
    assert memory.pool[:, 0].tolist() == [1, 6, -1, 4, 5, -1, 7, 3]


def test_there_are_no_more_slots_than_pages_and_perhaps_none(spec: ModelSpec) -> None:
    memory = memory_of(spec, "cpu")
    assert HostPages(memory, 1 << 40).slots == PAGES
    assert HostPages(memory, memory.pool[0].nbytes - 1).slots == 0


def test_pages_are_touched_while_a_pass_that_reads_them_may_be_under_way(spec: ModelSpec) -> None:
    memory = memory_of(spec, "cpu")
    assert not memory.touched(range(PAGES))
    memory.launch(StepPlan([chunk([7], [1, 2])], [(3, 4)]))
    memory.leave([5])  # an adapter of that pass
    assert [page for page in range(PAGES) if memory.touched([page])] == [1, 2, 3, 4, 5]
    memory.launch(StepPlan([chunk([7], [6])]))
    assert memory.touched([0, 1])  # the one before may not have ended
    memory.launch(StepPlan([chunk([7], [6])]))
    assert [page for page in range(PAGES) if memory.touched([page])] == [6]
