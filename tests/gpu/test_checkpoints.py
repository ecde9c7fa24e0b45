"""On a GPU, checkpoints compute what their dequantised weights say, within the memory they may.

Each engine runs in a process of its own. A 70B checkpoint takes about 45 GB of disk and is written
only with LORATORIO_TEST_70B=1.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from engine.bench.checkpoints import CheckpointWriter
from engine.bench.correct import DECODED, PROMPT, ROUNDED_SHARE, TOLERANCE
from engine.bench.shapes import LLAMA_8B, LLAMA_70B
from tests.engine.bytes_checkpoints import BYTE_LAYOUTS, write_bytes
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

NEAR_TIE = 0.05  # nats; twice what log-probabilities were seen to be off by, and some
SMALL = {"hidden": 256, "inner": 512, "heads": 4, "head_dim": 64, "vocab": 1024, "positions": 2048}
FAMILIES = {
    "mistral-sliding-window-awq": (
        {"extra": {"architectures": ["MistralForCausalLM"], "sliding_window": 32}},
        Layout("awq", 128),
    ),
    "qwen3-norms-of-q-and-k-gptq-8-bits": (
        {"extra": {"architectures": ["Qwen3ForCausalLM"]}, "qk_norm": True},
        Layout("gptq", 128, bits=8),
    ),
    "qwen2-biases-gptq-act-order": (
        {"extra": {"architectures": ["Qwen2ForCausalLM"]}, "qkv_bias": True},
        Layout("gptq", 64, act_order=True),
    ),
    "llama-compressed-tensors": ({}, Layout("compressed-tensors", 128)),
}


def tried(path, *options):
    """What ``tests.gpu.trial`` found."""
    command = [sys.executable, "-m", "tests.gpu.trial", str(path), *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    compiled = [line for line in ran.stderr.splitlines() if "compiled while" in line]
    sys.stderr.write("\n".join([*compiled, ran.stdout]))
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module", params=["awq", "gptq", "gptq-act-order"])
def checkpoint(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / request.param
    CheckpointWriter(LLAMA_8B, request.param).write(path)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("adapters", "options"), [(0, ["--eager"]), (64, [])], ids=["base", "graphs"]
)
def test_an_8b_checkpoint_matches_its_dequantised_weights(checkpoint, adapters, options):
    found = tried(checkpoint, "--divergence", "--adapters", str(adapters), *options)
    assert found["compared"] >= 20 * (PROMPT + DECODED - 1) * (adapters + 2)
    assert found["worst"] <= TOLERANCE
    assert found["divergence"] <= 1e-3
    assert found["peak"] <= 0.9 * found["total"]
    assert found["compiled"] == 0
    assert found["widest parting"] <= NEAR_TIE  # batches differ by a pass


@pytest.mark.parametrize("name", FAMILIES)
def test_a_small_model_of_every_kind_matches_its_dequantised_weights(name, tmp_path):
    shape, layout = FAMILIES[name]
    path = write_checkpoint(tmp_path, Shape(**SMALL, **shape), layout).path
    found = tried(path, "--divergence", "--adapters", "6", "--deterministic")
    assert found["worst"] <= TOLERANCE
    assert found["divergence"] <= 1e-3
    assert found["compiled"] == 0
    assert found["unlike serial"] == []


@pytest.mark.parametrize("layout", BYTE_LAYOUTS, ids=str)
def test_weights_of_a_byte_match_their_dequantised_ones(layout, tmp_path):
    write_bytes(tmp_path, layout, Shape(**SMALL))
    found = tried(tmp_path, "--divergence", "--adapters", "6", "--deterministic")
    assert found["worst"] <= TOLERANCE
    assert found["divergence"] <= 1e-3
    assert found["compiled"] == 0
    assert found["unlike serial"] == []


@pytest.mark.parametrize("mode", [[], ["--deterministic"]])
def test_pages_and_a_head_of_8_bits_match_the_definition_that_rounds_so_too(mode, tmp_path):
    path = write_checkpoint(tmp_path, Shape(**SMALL), Layout("gptq", 64)).path
    narrow = ("--kv-cache-dtype", "fp8", "--head-dtype", "int8")
    found = tried(path, "--divergence", "--adapters", "6", *narrow, *mode)
    assert 0 < found["share"] <= ROUNDED_SHARE["float16"]
    assert found["divergence"] <= 3e-3
    assert found["compiled"] == 0


@pytest.mark.parametrize("mode", [[], ["--deterministic"]])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_adapters_of_8_bits_match_the_definition_of_what_is_left_of_them(kind, mode, tmp_path):
    path = write_checkpoint(tmp_path, Shape(**SMALL), Layout("gptq", 64)).path
    found = tried(path, "--divergence", "--adapters", "6", "--adapter-dtype", kind, *mode)
    assert found["worst"] <= TOLERANCE
    assert found["divergence"] <= 1e-3
    assert found["compiled"] == 0


@pytest.mark.skipif(not os.environ.get("LORATORIO_TEST_70B"), reason="writes 45 GB to disk")
def test_a_70b_checkpoint_with_16_adapters_answers_right_on_one_gpu(tmp_path):
    CheckpointWriter(LLAMA_70B, "awq").write(tmp_path)
    found = tried(tmp_path, "--adapters", "16")
    assert found["worst"] <= TOLERANCE
    assert found["peak"] <= 0.9 * found["total"]
