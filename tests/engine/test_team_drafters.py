"""In a team a drafter with a model of its own drafts as it does for one engine."""

import json

import pytest

from engine.bench.alone import LoneEngine, Requests
from engine.config import Device, Dtype, EngineConfig
from engine.speculation.proposer import Ask
from engine.speculation.settings import SpeculationSettings
from engine.step import Chunk, StepPlan
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.eagle_heads import write_head
from tests.engine.rig import draw
from tests.engine.test_team import counted

pytestmark = pytest.mark.slow

MODEL = Shape(layers=4, heads=4, kv_heads=2, head_dim=32)
PAGES = [2, 0, 3, 1]


def settings(base, drafter, method, size):
    asked = {"method": method, "model": str(drafter), "num_speculative_tokens": 3}
    return EngineConfig(
        model=str(base), device=Device.CPU, dtype=Dtype.FLOAT32, threads=1, page_tokens=16,
        max_num_seqs=4, max_num_batched_tokens=64, pool_bytes=1 << 22, tensor_parallel_size=size,
        speculation=SpeculationSettings.parse(json.dumps(asked)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A base, and what drafts for it: itself, or a head that shares its embeddings."""
    folder = tmp_path_factory.mktemp("drafters")
    base = write_checkpoint(folder / "base", MODEL, Layout("gptq", 32)).path
    return {
        "base": base,
        "draft_model": base,
        "eagle3": write_head(folder / "h", target=MODEL).path,
    }


def drafted(built, prompt):
    """Rounds of drafts, and what the passes that verified them brought."""

    def passed(tokens, start, drafts):
        draws = [draw(output=[0] * i) for i in range(len(drafts) + 1)]
        chunk = Chunk(
            sequence=1, tokens=tokens, start=start, pages=PAGES, draw=draws[0], drafts=draws[1:]
        )
        (drawn,) = built.runner.launch(StepPlan([chunk])).wait().drawn
        return [row.token for row in (drawn, *drawn.further)]

    output, rounds = passed(prompt, 0, []), []
    for _ in range(4):
        ask = Ask(sequence=1, prompt=prompt, output=output, most=3, pages=PAGES)
        drafts = list(built.proposer.propose([ask])[1])
        found = passed([output[-1], *drafts], ask.known - 1, drafts)
        output, rounds = [*output, *found], [*rounds, (drafts, found)]
    built.proposer.forget(1)
    return rounds


def answers(engine):
    requests = Requests()
    for i in range(6):
        engine.submit(str(i), engine.random_prompt(10 + 7 * i, seed=i), 12)
    for _ in engine.passes(requests):
        engine.core.seating.check()
    return requests.outputs


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_team_drafts_and_answers_as_one_engine_does(written, method):
    alone, team = (
        LoneEngine(settings(written["base"], written[method], method, size)) for size in (1, 2)
    )
    try:
        prompt = alone.random_prompt(21, seed=5)
        rounds = drafted(alone.built, prompt)
        assert drafted(team.built, prompt) == rounds
        if method == "draft_model":  # the base itself: all that it says is kept
            assert all(found[:-1] == drafts for drafts, found in rounds)
        assert answers(team) == answers(alone)
        assert counted(team, "vllm:spec_decode_num_drafts_total") > 0
    finally:
        team.built.close()
