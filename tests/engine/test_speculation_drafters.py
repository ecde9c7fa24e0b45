"""Whoever drafts, a model that verifies says what it says a token at a time."""

import random
from pathlib import Path

import pytest

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.config import Device, Dtype, EngineConfig
from engine.errors import CheckpointInvalid
from engine.protocol import Sampling
from engine.speculation.settings import Method, SpeculationSettings
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.eagle_heads import write_head

K = 3
BASE = Shape(hidden=64, inner=96, heads=4, kv_heads=2, head_dim=16, layers=4, vocab=256)
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "adapted": Sampling(temperature=0.0),
    "warm": Sampling(temperature=0.9, top_p=0.9, top_k=40, seed=5),
    "penalised": Sampling(temperature=0.0, repetition_penalty=1.2, presence_penalty=0.1),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"), BASE, Layout("gptq", 32)).path


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory, base: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafters")
    small = Shape(layers=1, vocab=BASE.vocab, positions=100)
    return {
        "itself": base,
        "small": write_checkpoint(folder / "small", small, seed=5).path,
        "eagle3": write_head(folder / "head", target=BASE, said=100).path,
    }


def settings(path: Path, kind: str) -> SpeculationSettings:
    method = Method.EAGLE3 if kind == "eagle3" else Method.DRAFT_MODEL
    return SpeculationSettings(method=method, tokens=K, model=str(path))


def engine(path: Path, speculation: SpeculationSettings | None, *, pages: int = 96) -> LoneEngine:
    return LoneEngine(
        EngineConfig(
            model=str(path), device=Device.CPU, dtype=Dtype.FLOAT32, deterministic=True,
            page_tokens=16, pool_bytes=pages * 16384 * 2, max_model_len=128, max_num_seqs=8,
            max_num_batched_tokens=64, threads=1, speculation=speculation,
        )
    )  # fmt: skip


def counts(lone: LoneEngine) -> tuple[float, float]:
    """Drafts that were verified, and kept."""
    lines = lone.core._metrics.text().splitlines()

    def total(name: str) -> float:
        found = [line.split()[-1] for line in lines if f"{name}_total{{" in line]
        return sum(map(float, found))

    return total("spec_decode_num_draft_tokens"), total("spec_decode_num_accepted_tokens")


def answers(lone: LoneEngine) -> Requests:
    said, choose = Requests(), random.Random(4)
    for name, sampling in SAMPLINGS.items():
        prompt = [choose.randrange(3, 250) for _ in range(18)]
        ref = adapter_ref(0, 8) if name == "adapted" else None
        lone.submit(name, prompt, 14, ref, sampling=sampling, logprobs=2)
    for _ in lone.passes(said):
        lone.core.seating.check()
    return said


@pytest.fixture(scope="module")
def expected(base: Path) -> Requests:
    return answers(engine(base, None))


@pytest.mark.parametrize("kind", ["itself", "small", "eagle3"])
def test_tokens_and_their_chances_are_those_of_plain_passes(
    base: Path, drafters: dict[str, Path], expected: Requests, kind: str
) -> None:
    drafting = engine(base, settings(drafters[kind], kind), pages=20)
    for _ in range(2):  # the first passes are plain
        found = answers(drafting)
        assert found.outputs == expected.outputs
        for name, chances in expected.logprobs.items():
            assert found.logprobs[name] == chances
    assert counts(drafting)[0] > 20


def test_a_base_that_drafts_for_itself_is_always_right(
    base: Path, drafters: dict[str, Path]
) -> None:
    lone = engine(base, settings(drafters["itself"], "itself"))
    for name in ("first", "second", "third"):  # in plain passes it learns what a pass takes
        said = Requests()
        lone.submit(name, list(range(3, 20)), 29, None, sampling=Sampling(temperature=0.0))
        for _ in lone.passes(said):
            pass
    drafts, kept = counts(lone)
    assert drafts == kept > 10


def test_what_cannot_draft_is_refused_before_the_start(tmp_path: Path, base: Path) -> None:
    other = write_checkpoint(tmp_path / "m", Shape(layers=1, vocab=300)).path
    with pytest.raises(CheckpointInvalid, match=r"--speculative-config: .*vocab_size=300; expec"):
        engine(base, settings(other, "small"))
    with pytest.raises(CheckpointInvalid, match="no EAGLE-3 head"):
        engine(base, settings(other, "eagle3"))
