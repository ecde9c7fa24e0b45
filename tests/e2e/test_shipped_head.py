"""The EAGLE-3 head that ships with the demo: several tokens a pass, and not one of them another."""

from importlib import resources
from pathlib import Path

import pytest
import tokenizers

from bench.drafters import Stream, Tally
from engine.config import Device, Dtype, EngineConfig
from engine.demo.corpus import question
from engine.speculation.settings import Method, SpeculationSettings
from gateway.cli.prepare import DEMO_MODEL
from tests.e2e.server import Server

HEAD = resources.files("engine.demo") / "drafters" / "eagle3"
TOKENS = 24
# Of the questions that it has not learned from.
PROMPTS = (
    "What is the capital of Portugal?",
    "What is the capital of Norway?",
    "What is the chemical symbol for silver?",
)


@pytest.fixture(scope="module")
def base(server: Server) -> Path:
    """Which the server has made."""
    return server.data_dir / "demo" / DEMO_MODEL


@pytest.fixture(scope="module")
def stream(base: Path) -> Stream:
    return Stream(
        EngineConfig(
            model=str(base), device=Device.CPU,
            dtype=Dtype.FLOAT32, max_model_len=512, deterministic=True, threads=1,
            speculation=SpeculationSettings(method=Method.EAGLE3, tokens=3, model=str(HEAD)),
        )
    )  # fmt: skip


def test_answers_are_those_without_it_in_little_more_than_half_the_passes(
    base: Path, stream: Stream
):
    tokenizer = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    with_drafts, plain = Tally(), Tally()
    for text in PROMPTS:
        prompt = tokenizer.encode(question(text), add_special_tokens=False).ids
        stream.answer(prompt, TOKENS, with_drafts)
        stream.answer(prompt, TOKENS, plain, drafting=False)
    assert with_drafts.answers == plain.answers
    assert plain.passes == plain.tokens == with_drafts.tokens
    assert with_drafts.tokens / with_drafts.passes >= 1.8
