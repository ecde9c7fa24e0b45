"""A model that verifies drafts says what it says a token at a time."""

import random
from pathlib import Path

import pytest

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.config import Device, Dtype, EngineConfig
from engine.protocol import Sampling
from engine.speculation.settings import Method, SpeculationSettings
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

SHAPE = Shape(hidden=128, inner=160, heads=4, kv_heads=2, head_dim=32, layers=2, vocab=256)
NGRAM = SpeculationSettings(method=Method.NGRAM, tokens=4, lookup_min=1, lookup_max=3)
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "cool": Sampling(temperature=0.2, seed=3),
    "warm": Sampling(temperature=0.9, top_p=0.9, top_k=40, min_p=0.01, seed=5),
    "penalised": Sampling(
        temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.1, presence_penalty=0.1
    ),
    "biased": Sampling(temperature=0.3, seed=9, logit_bias=[(7, 4.0), (9, -3.0)]),
    "forbidden": Sampling(temperature=0.0, bad_words=[[7], [3, 4]]),
    "few": Sampling(temperature=0.5, seed=1, allowed=[3, 4, 5], min_tokens=4),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("spec"), SHAPE, Layout("gptq", 32)).path


def engine(path: Path, speculation: SpeculationSettings | None, *, pages: int = 96) -> LoneEngine:
    return LoneEngine(
        EngineConfig(
            model=str(path), device=Device.CPU, dtype=Dtype.FLOAT32, deterministic=True,
            page_tokens=16, pool_bytes=pages * 16384 * 2, max_model_len=128, max_num_seqs=8,
            max_num_batched_tokens=64, threads=1, speculation=speculation,
        )
    )  # fmt: skip


def answers(lone: LoneEngine, adapter: int | None) -> Requests:
    said, choose = Requests(), random.Random(4)
    for name, sampling in SAMPLINGS.items():
        run = [choose.randrange(3, 250) for _ in range(6)]
        ref = None if adapter is None else adapter_ref(adapter, 8)
        lone.submit(name, run * 3, 24, ref, sampling=sampling, logprobs=2)
    for _ in lone.passes(said):
        lone.core.seating.check()
    return said


def test_tokens_and_their_chances_are_those_of_plain_passes(path: Path) -> None:
    plain, drafting = engine(path, None), engine(path, NGRAM, pages=20)
    answers(drafting, None)  # the first passes are plain
    for adapter in (None, 0, 1):
        expected, found = answers(plain, adapter), answers(drafting, adapter)
        assert found.outputs == expected.outputs
        for name, chances in expected.logprobs.items():
            assert found.logprobs[name] == chances
    text = drafting.core._metrics.text()
    accepted = [line for line in text.splitlines() if "num_accepted_tokens_total{" in line]
    assert float(accepted[0].split()[-1]) > 20
