"""What a benchmark lets pass as right, on a tiny shape of random weights."""

import pytest

from engine.bench.alone import BenchmarkRefused, LoneEngine
from engine.bench.checkpoints import CheckpointWriter
from engine.bench.correct import ROUNDED_SHARE, check
from engine.bench.shapes import TINY
from engine.config import EngineConfig, HeadDtype, KvCacheDtype


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    CheckpointWriter(TINY, "awq", group=64).write(path)
    return path


def lone_engine(path, **options):
    options = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4} | options
    return LoneEngine(EngineConfig(model=str(path), **options))


def test_an_engine_that_rounds_nothing_is_held_to_float32(checkpoint):
    found = check(lone_engine(checkpoint), checkpoint, rank=8)
    assert found.worst < 0.1
    assert found.share == 0.0


@pytest.mark.parametrize(
    "narrow", [{"kv_cache_dtype": KvCacheDtype.FP8}, {"head_dtype": HeadDtype.INT8}], ids=str
)
def test_one_that_rounds_is_held_to_what_rounding_changes(checkpoint, narrow):
    found = check(lone_engine(checkpoint, **narrow), checkpoint, rank=8)
    assert 0.0 < found.share <= ROUNDED_SHARE["float32"]


@pytest.mark.parametrize("what", ["narrow", "narrow_head"])
def test_one_that_does_not_round_as_it_says_is_refused(checkpoint, what):
    engine = lone_engine(checkpoint)
    setattr(engine, what, True)
    with pytest.raises(BenchmarkRefused, match="of what 8 bits change"):
        check(engine, checkpoint, rank=8)
