"""A model that verifies drafts says what it says a token at a time."""

import json
import random
from pathlib import Path

import pytest

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.bench.vocabulary import write_tokenizer
from engine.config import Device, Dtype, EngineConfig
from engine.protocol import Sampling
from engine.speculation.settings import Method, SpeculationSettings
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

SHAPE = Shape(hidden=128, inner=160, heads=4, kv_heads=2, head_dim=32, layers=2, vocab=320)
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
GRAMMARS = (
    None,
    *(
        json.dumps({"grammars": [{"lark_grammar": f"start: /{regex}/"}]})
        for regex in ("(ab|c, ){9}", "[0-9]{3}( [0-9]{3})*", r'\{"a": "[a-f]*"\}')
    ),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_checkpoint(tmp_path_factory.mktemp("spec"), SHAPE, Layout("gptq", 32)).path
    write_tokenizer(made / "tokenizer.json", SHAPE.vocab)
    return made


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


def held(lone: LoneEngine) -> Requests:
    """Answers that grammars hold, beside one that is free."""
    said = Requests()
    for number, grammar in enumerate(GRAMMARS):
        sampling = Sampling(temperature=0.6 * (number % 2), seed=number)
        prompt = [20 + number, 30, 40, 20 + number, 30]
        lone.submit(f"r{number}", prompt, 40, grammar=grammar, sampling=sampling)
    for _ in lone.passes(said):
        lone.core.seating.check()
    return said


def test_what_grammars_hold_is_what_they_hold_in_plain_passes(path: Path) -> None:
    plain, drafting = engine(path, None), engine(path, NGRAM)
    held(drafting)  # the first passes are plain
    before = accepted(drafting)
    assert held(drafting).outputs == held(plain).outputs
    assert accepted(drafting) > before + 10


def test_tokens_and_their_chances_are_those_of_plain_passes(path: Path) -> None:
    plain, drafting = engine(path, None), engine(path, NGRAM, pages=20)
    answers(drafting, None)  # the first passes are plain
    for adapter in (None, 0, 1):
        expected, found = answers(plain, adapter), answers(drafting, adapter)
        assert found.outputs == expected.outputs
        for name, chances in expected.logprobs.items():
            assert found.logprobs[name] == chances
    assert accepted(drafting) > 20


def accepted(lone: LoneEngine) -> float:
    lines = lone.core._metrics.text().splitlines()
    (found,) = [line for line in lines if "num_accepted_tokens_total{" in line]
    return float(found.split()[-1])
