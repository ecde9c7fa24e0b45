"""On two GPUs a model computes what its dequantised weights say, from captured graphs, with
adapters; and an engine that loses a member says so and ends."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from engine.bench.checkpoints import CheckpointWriter
from engine.bench.correct import DECODED, PROMPT, TOLERANCE
from engine.bench.shapes import LLAMA_8B
from tests.engine.bytes_checkpoints import BYTE_LAYOUTS, write_bytes
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.gpu.test_checkpoints import FAMILIES, NEAR_TIE, SMALL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


def ran(module, *arguments):
    """The last line of what a process printed, and all of its log."""
    command = [sys.executable, "-m", f"tests.gpu.{module}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("form", ["awq", "gptq-act-order"])
def test_an_8b_checkpoint_on_two_gpus_matches_its_dequantised_weights(form, tmp_path):
    CheckpointWriter(LLAMA_8B, form).write(tmp_path)
    found, log = ran("trial", tmp_path, "--adapters", 16, "--tensor-parallel-size", 2)
    shutil.rmtree(tmp_path)
    assert found["compared"] >= 20 * (PROMPT + DECODED - 1) * 18
    assert found["worst"] <= TOLERANCE
    assert found["peak"] <= 0.9 * found["total"]
    assert found["widest parting"] <= NEAR_TIE
    assert found["compiled"] == 0
    assert "compiled while serving" not in log  # by either member


@pytest.mark.parametrize("name", FAMILIES)
def test_a_small_model_of_every_kind_on_two_gpus_matches_its_weights(name, tmp_path):
    shape, layout = FAMILIES[name]
    path = write_checkpoint(tmp_path, Shape(**SMALL, **shape), layout).path
    found, log = ran("trial", path, "--adapters", 6, "--deterministic", "--tensor-parallel-size", 2)
    assert found["worst"] <= TOLERANCE
    assert found["unlike serial"] == []
    assert "compiled while serving" not in log


@pytest.mark.parametrize("layout", BYTE_LAYOUTS, ids=str)
def test_weights_of_a_byte_on_two_gpus_match_their_dequantised_ones(layout, tmp_path):
    write_bytes(tmp_path, layout, Shape(**SMALL))
    found, _ = ran("trial", tmp_path, "--adapters", 6, "--tensor-parallel-size", 2)
    assert found["worst"] <= TOLERANCE


def test_an_engine_that_loses_a_gpus_process_says_so_and_ends(tmp_path):
    path = write_checkpoint(tmp_path, Shape(**SMALL), Layout("awq", 128)).path
    found, _ = ran("bereft", path)
    assert found["reason"] == "member 1 of the team has ended: signal 9"
    assert found["seconds"] < 10
