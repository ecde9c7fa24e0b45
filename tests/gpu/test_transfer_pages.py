"""Pages of a pool on a GPU go to slots and back bit by bit, and to another process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.handoff.pages import TransferPages
from engine.step import StepPlan
from tests.engine.checkpoints import Layout, write_checkpoint
from tests.engine.rig import Rig, chunk
from tests.engine.test_host_pages import SHAPE, memory_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, SHAPE, Layout("gptq", 32)).path


def test_a_slot_holds_what_its_page_held_once_the_copy_is_over(path: Path) -> None:
    memory = memory_of(Rig(path).spec, "cuda")
    transfer = TransferPages(memory, 4 * memory.pool[0].nbytes, direct=False)
    busy = torch.randn(4096, 4096, device="cuda")
    for turn in range(20):
        memory.pool[3] = float(turn)
        torch.cuda.synchronize()
        memory.launch(StepPlan([chunk([7], [3])]))  # reads it, and is under way
        for _ in range(4):
            busy = busy @ busy * 1e-4
        ended = transfer.out(3, turn % 4)
        while not ended():
            time.sleep(0.0002)
        sent = bytes(transfer.view(turn % 4))
        assert sent == memory.pool[3].cpu().numpy().tobytes()
        transfer.view((turn + 1) % 4)[:] = sent  # as if it had come from another engine
        transfer.back((turn + 1) % 4, 5)
        memory.await_copies()
        assert bool((memory.pool[5].clone() == turn).all())


@pytest.mark.parametrize("device", [0, 1])
def test_another_process_of_this_host_reads_a_page_where_it_lies(path: Path, device: int) -> None:
    if device >= torch.cuda.device_count():
        pytest.skip("needs two CUDA devices")
    memory = memory_of(Rig(path).spec, "cuda")
    transfer = TransferPages(memory, 4 << 20, direct=True)
    assert transfer.pool
    command = [
        sys.executable, "-m", "tests.gpu.pool_reader", str(path), transfer.pool.hex(), "5",
    ]  # fmt: skip
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(device)}  # it alone is seen there
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "[6.0]", done.stderr[-3000:]
