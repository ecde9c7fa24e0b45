"""Two processes that compute a model together answer as one engine does, and end together."""

import os
import re
import signal
import time

import pytest

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.composition import build_runner
from engine.config import Device, Dtype, EngineConfig
from engine.errors import ConfigError, MemberLost
from engine.speculation.settings import SpeculationSettings
from engine.step import StepPlan
from engine.team.adapters import TeamAdapters
from tests.engine.checkpoints import Layout, Shape
from tests.engine.rig import chunk, draw
from tests.engine.seeing_checkpoints import TOKEN, image_at, seen, write_seeing

pytestmark = pytest.mark.slow

MODEL = Shape(heads=4, kv_heads=2, head_dim=32)
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}'
PAGES = 22  # few: sequences have to yield, adapters to leave
SIX = [None, *(adapter_ref(i, rank) for i, rank in enumerate((4, 8, 20, 4, 8)))]


def settings(path, size):
    page = 2 * 2 * 2 * 32 * 16 * 4 // size  # layers, K and V, heads, head, tokens, bytes
    return EngineConfig(
        model=str(path), device=Device.CPU, dtype=Dtype.FLOAT32, threads=1, page_tokens=16,
        max_num_seqs=8, max_num_batched_tokens=64, pool_bytes=PAGES * max(page, 1 << 15),
        tensor_parallel_size=size, speculation=SpeculationSettings.parse(DRAFTS),
    )  # fmt: skip


def answers(engine):
    """Of requests with and without adapters, twice: the second time their beginnings are known."""
    found = {}
    for turn in range(2):
        requests = Requests()
        for i in range(9):
            prompt = engine.random_prompt(20 + 9 * (i % 5), seed=i)
            engine.submit(f"{turn} {i}", prompt, 12 + i, SIX[i % len(SIX)])
        for _ in engine.passes(requests):
            engine.core.seating.check()
        found |= requests.outputs
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    layout = Layout("gptq", 32, act_order=True)
    return write_seeing(tmp_path_factory.mktemp("team") / "m", layout=layout, shape=MODEL).path


@pytest.fixture(scope="module")
def team(path):
    engine = LoneEngine(settings(path, 2))
    yield engine
    engine.built.close()


def processes(engine):
    memory = engine.built.memory
    assert isinstance(memory, TeamAdapters)
    return memory.lead.processes


def counted(engine, metric):
    found = re.search(rf"^{metric}\S* (\S+)", engine.core._metrics.text(), re.M)
    assert found, metric
    return float(found[1])


def test_two_members_answer_as_one_engine_does(path, team):
    alone = LoneEngine(settings(path, 1))
    ours, theirs = answers(team), answers(alone)
    assert ours == theirs
    assert team.core.residency.evictions > 0
    assert counted(team, "vllm:prefix_cache_hits_total") > 0
    assert counted(team, "vllm:spec_decode_num_drafts_total") > 0


def test_pages_come_back_from_every_members_memory(path, team):
    """A prompt's pages are swapped out, used for another prompt, and brought back."""
    prompts = [team.random_prompt(30, seed=i) for i in range(2)]

    def logprobs(tokens, start=0):
        asks = draw(output=[0] * start, logprobs=4)
        plan = StepPlan([chunk(tokens[start:], [0, 1], start=start, draw=asks)])
        (drawn,) = team.built.runner.launch(plan).wait().drawn
        return drawn

    expected = logprobs(prompts[0])
    logprobs(prompts[0][:-1])
    team.built.swap.out([0, 1], [3, 2])
    logprobs(prompts[1])
    team.built.swap.back([3, 2], [0, 1])
    again = logprobs(prompts[0], start=29)
    assert again.token == expected.token
    assert again.logprobs.logprob == pytest.approx(expected.logprobs.logprob, abs=1e-5)


def test_what_the_lead_sees_every_member_computes_with(path, team):
    prompt = team.random_prompt(40, seed=3)
    prompt[5:21] = [TOKEN] * 16

    def told(built, seed):
        images = seen([image_at(5, seed)], 0, 40)
        asks = chunk(prompt, [0, 1, 2], draw=draw(), images=images, prompt_logprobs=1)
        (drawn,) = built.runner.launch(StepPlan([asks])).wait().drawn
        return [fact.logprob for fact in drawn.prompt_logprobs]

    alone = build_runner(settings(path, 1))
    expected = told(alone, 0)
    assert told(team.built, 0) == pytest.approx(expected, abs=1e-4)
    assert told(team.built, 1) != pytest.approx(expected, abs=1e-2)


def test_a_follower_that_is_killed_ends_the_engine_with_the_reason(team):
    (follower,) = processes(team)
    team.submit("long", team.random_prompt(20, seed=1), 200)
    passes = team.passes(Requests())
    next(passes)
    os.kill(follower, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(MemberLost, match="member 1 of the team has ended: signal 9"):
        for _ in passes:
            pass
    assert time.monotonic() - began < 5
    team.built.close()
    with pytest.raises(ProcessLookupError):
        os.kill(follower, 0)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0 must be at least 1"),
        ({"tensor_parallel_size": 3, "deterministic": True}, "more than 2 devices"),
        ({"tensor_parallel_size": 2, "handoff_listen": "tcp:127.0.0.1:0"}, "handoff_listen"),
    ],
)
def test_what_a_team_cannot_do_is_refused_by_name(more, reason):
    with pytest.raises(ConfigError, match=reason):
        EngineConfig(model="x", **more)


def test_a_model_that_cannot_be_cut_is_refused_before_anything_starts(path):
    with pytest.raises(ConfigError, match="num_attention_heads=4"):
        build_runner(settings(path, 3))
