"""``loratorio quantize`` with GPTQModel itself, on a model of two small layers."""

import json
import os
from pathlib import Path

import pytest

from engine.checkpoint import Checkpoint
from engine.quantiser.cli import REPORT, main
from tests.engine.checkpoints import Shape
from tests.engine.test_quantiser import dense, numbers

pytestmark = pytest.mark.skipif(
    "COMPAT_WRITTEN" not in os.environ, reason="needs the packers' environments"
)
SHAPE = Shape(hidden=128, inner=256, heads=4, kv_heads=2, head_dim=32)


@pytest.fixture(scope="module")
def python() -> Path:
    cache = Path(os.environ["COMPAT_WRITTEN"]).parent
    return next(cache.glob("gptqmodel-*/bin/python"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--format", "gptq", "--group-size", "32", "--desc-act"),
        ("--format", "gptq", "--group-size", "64", "--sym", "--bits", "8"),
        ("--format", "awq", "--group-size", "64"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_what_gptqmodel_makes_of_a_model_is_served_and_near_it(tmp_path, python, arguments):
    model = dense(tmp_path / "model", SHAPE)
    text, out = numbers(tmp_path / "text.txt", 2000), tmp_path / "out"
    files = ["--calibration", str(text), "--evaluation", str(text)]
    assert main([str(model), *arguments, *files, "--out", str(out), "--python", str(python)]) == 0
    report = json.loads((out / REPORT).read_text())
    assert report["relative_error"] < 0.5
    assert report["perplexity"] < 1.5 * report["source_perplexity"]
    config = Checkpoint(out).config["quantization_config"]
    assert config["quant_method"] == arguments[1]
    assert bool(config.get("desc_act")) == ("--desc-act" in arguments)
