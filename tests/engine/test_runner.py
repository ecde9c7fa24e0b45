"""A pass gives every chunk what it would get alone, reports what was asked, and keeps faults
to the row they belong to."""

import numpy as np
import pytest
import torch

from engine.composition import build_runner
from engine.config import EngineConfig
from engine.errors import CheckpointInvalid, ConfigError, OutOfMemory
from engine.protocol import Sampling
from engine.sampling import NOT_FINITE
from engine.step import DRAWN, Masks, StepPlan
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import GREEDY, Rig, chunk, draw

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("m"), layout=Layout("gptq", 32)).path


@pytest.fixture
def rig(path):
    rig = Rig(path)
    for row, rank in ((0, 4), (1, 19), (2, 8)):
        rig.load(row, random_adapter(rig.spec, rank, seed=row))
    return rig


def tokens(count, seed=0):
    return torch.randint(3, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_a_mixed_batch_gives_each_chunk_its_solo_logits(rig):
    lengths, adapters = [9, 1, 33, 1, 17, 2], [0, 0, -1, 1, 1, 2]
    prompts = [tokens(20 + n, seed=n) for n in lengths]
    pages = [rig.pages(60) for _ in lengths]
    for prompt, own, adapter, n in zip(prompts, pages, adapters, lengths, strict=True):
        rig.launch([chunk(prompt[:-n], own, adapter=adapter)])
    chunks = [
        chunk(prompt[-n:], own, start=len(prompt) - n, adapter=adapter)
        for prompt, own, adapter, n in zip(prompts, pages, adapters, lengths, strict=True)
    ]
    together = rig.logits(chunks).split(lengths)
    for prompt, adapter, n, logits in zip(prompts, adapters, lengths, together, strict=True):
        alone = rig.logits([chunk(prompt, rig.pages(60), adapter=adapter)])
        torch.testing.assert_close(logits, alone[-n:], **CLOSE)


@pytest.mark.parametrize("cut", [1, 7, 16, 31])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(rig, cut):
    prompt = tokens(50)
    whole = rig.logits([chunk(prompt, rig.pages(50), adapter=1)])
    pages, parts = rig.pages(50), []
    for start in range(0, 50, cut):
        part = prompt[start : start + cut]
        parts.append(rig.logits([chunk(part, pages, start=start, adapter=1)]))
    torch.testing.assert_close(torch.cat(parts), whole, **CLOSE)


def test_greedy_tokens_are_the_most_likely_ones(rig):
    prompt = tokens(12)
    want = int(rig.logits([chunk(prompt, rig.pages(12))])[-1].argmax())
    (drawn,) = rig.launch([chunk(prompt, rig.pages(12), draw=draw())])
    assert drawn.token == want
    assert drawn.logprobs is None


def test_a_chunk_that_does_not_draw_brings_nothing(rig):
    still, drawing = rig.launch(
        [chunk(tokens(8), rig.pages(8)), chunk(tokens(8), rig.pages(8), draw=draw())]
    )
    assert still.token is None
    assert drawing.token is not None


def test_an_empty_plan_brings_nothing(rig):
    assert rig.launch([]) == []


def test_logprobs_are_of_the_token_and_the_likeliest_alternatives(rig):
    prompt = tokens(12)
    logprobs = rig.logits([chunk(prompt, rig.pages(12))])[-1].log_softmax(0)
    (drawn,) = rig.launch([chunk(prompt, rig.pages(12), draw=draw(logprobs=3))])
    values, ids = logprobs.topk(3)
    assert [token for token, _ in drawn.logprobs.top] == ids.tolist()
    assert [value for _, value in drawn.logprobs.top] == pytest.approx(values.tolist(), abs=1e-4)
    assert drawn.logprobs.logprob == pytest.approx(float(values[0]), abs=1e-4)


def test_each_row_gets_as_many_alternatives_as_it_asked_for(rig):
    asked = [None, 0, 5, 2]
    drawn = rig.launch([chunk(tokens(5), rig.pages(5), draw=draw(logprobs=n)) for n in asked])
    assert [d.logprobs and len(d.logprobs.top) for d in drawn] == [None, 0, 5, 2]


@pytest.mark.parametrize("rows", [2, 3, 40])
def test_prompt_logprobs_name_every_token_but_the_first(rig, rows, monkeypatch):
    monkeypatch.setattr("engine.runner.PROMPT_ROWS", 7)
    prompt = tokens(rows)
    logprobs = rig.logits([chunk(prompt, rig.pages(rows))]).log_softmax(1)
    _, drawn = rig.launch(
        [
            chunk(tokens(4), rig.pages(4), draw=draw()),
            chunk(prompt, rig.pages(rows), draw=draw(), prompt_logprobs=2),
        ]
    )
    assert len(drawn.prompt_logprobs) == rows - 1
    for i, fact in enumerate(drawn.prompt_logprobs):
        assert fact.logprob == pytest.approx(float(logprobs[i, prompt[i + 1]]), abs=1e-4)
        assert [token for token, _ in fact.top] == logprobs[i].topk(2).indices.tolist()


def test_one_token_prompts_have_no_prompt_logprobs(rig):
    (drawn,) = rig.launch([chunk([5], rig.pages(1), draw=draw(), prompt_logprobs=1)])
    assert list(drawn.prompt_logprobs) == []


def test_an_adapter_of_nan_fails_only_its_own_rows(rig):
    broken = random_adapter(rig.spec, 4, seed=7)
    broken.factors[0, "q_proj"].b.fill_(float("nan"))
    rig.load(5, broken)
    prompt = tokens(10)
    (alone,) = rig.launch([chunk(prompt, rig.pages(10), draw=draw())])
    base, failed, other = rig.launch(
        [
            chunk(prompt, rig.pages(10), draw=draw()),
            chunk(prompt, rig.pages(10), adapter=5, draw=draw(logprobs=2)),
            chunk(prompt, rig.pages(10), adapter=2, draw=draw(Sampling(temperature=1.0))),
        ]
    )
    assert (base.token, base.failed) == (alone.token, "")
    assert (failed.token, failed.failed) == (None, NOT_FINITE)
    assert other.token is not None


def test_what_a_former_owner_left_in_a_page_does_not_matter(rig):
    prompt = tokens(21)
    clean = rig.logits([chunk(prompt, rig.pages(40))])
    dirty = rig.pages(40)
    rig.memory.pool[dirty] = float("nan")
    torch.testing.assert_close(rig.logits([chunk(prompt, dirty)]), clean, **CLOSE)
    after = rig.logits([chunk([9], dirty, start=21)])
    assert bool(after.isfinite().all())


def test_a_sequence_draws_the_same_whoever_shares_the_batch(rig):
    sampling, prompt = Sampling(temperature=1.3, top_k=40), tokens(15)
    wanted = draw(sampling, seed=1234, position=3)
    (alone,) = rig.launch([chunk(prompt, rig.pages(15), draw=wanted)])
    crowd = [chunk(tokens(6, seed=n), rig.pages(6), draw=draw(sampling, seed=n)) for n in range(5)]
    drawn = rig.launch([*crowd, chunk(prompt, rig.pages(15), draw=wanted)])
    assert drawn[-1].token == alone.token


def test_the_built_engine_serves_a_prompt_and_describes_itself(path):
    built = build_runner(EngineConfig(model=str(path), dtype="float32", page_tokens=16))
    plan = StepPlan([chunk(tokens(9), [0], draw=draw(GREEDY))])
    assert built.runner.launch(plan).wait().drawn[0].token is not None
    assert (built.base.quantization, built.base.dtype) == ("gptq", "float32")
    assert built.base.architecture == "LlamaForCausalLM"
    assert built.max_model_len == 512
    assert built.eos == {2}
    assert built.num_pages >= 512 // 16
    assert built.adapters is None


def test_a_pool_too_small_for_the_asked_length_is_refused(path):
    config = EngineConfig(model=str(path), dtype="float32", max_model_len=512, pool_bytes=64 << 10)
    with pytest.raises(OutOfMemory, match="max_model_len"):
        build_runner(config)


def test_a_small_pool_shortens_the_context_when_none_was_asked(path):
    config = EngineConfig(model=str(path), dtype="float32", page_tokens=16, pool_bytes=256 << 10)
    built = build_runner(config)
    assert built.max_model_len == built.num_pages * 16 < 512


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "cuda"}, "no CUDA device"),
        ({"dtype": "float16"}, "on CPU use"),
        ({"max_model_len": 513}, "max_position_embeddings=512"),
    ],
)
def test_settings_this_machine_or_model_cannot_meet_are_refused(path, settings, said):
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    facts = {"device": "cpu"} | settings
    with pytest.raises(ConfigError, match=said):
        build_runner(EngineConfig(model=str(path), **facts))


def test_an_architecture_we_do_not_serve_is_refused_by_name(tmp_path):
    shape = Shape(extra={"architectures": ["MambaForCausalLM"]})
    with pytest.raises(CheckpointInvalid, match="MambaForCausalLM"):
        build_runner(EngineConfig(model=str(write_checkpoint(tmp_path / "m", shape).path)))


ADJUSTED = Sampling(
    seed=3, temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2,
    logit_bias=[(7, 2.0)], min_tokens=2,
)  # fmt: skip


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=3), ADJUSTED])
def test_a_token_that_is_not_read_yet_computes_and_draws_as_if_it_were(rig, sampling):
    prompts, read = [tokens(5), tokens(9, seed=1)], {}
    for ahead in (False, True):
        pages = [rig.pages(30), rig.pages(30)]
        outputs = [[], []]
        for step in range(8):
            known = [[*p, *o] for p, o in zip(prompts, outputs, strict=True)]
            chunks = []
            for i in (0, 1) if step < 4 else (1, 0):  # a row's place changes
                at = len(known[i]) - 1 if step else 0
                hidden = ahead and step > 0
                chunks.append(
                    chunk(
                        [DRAWN] if hidden else known[i][at:], pages[i], start=at, adapter=i,
                        draw=draw(sampling, seed=i, position=step, prompt=prompts[i],
                                  output=outputs[i][:-1] if hidden else list(outputs[i])),
                    )
                )  # fmt: skip
            for each, drawn in zip(chunks, rig.launch(chunks), strict=True):
                outputs[each.adapter].append(drawn.token)
        read[ahead] = outputs
    assert read[True] == read[False]
    assert len(set(read[True][0])) > 1


def masks_of(allowed):
    """``allowed``: sequence -> the tokens its draw may take."""
    bits = np.zeros((len(allowed), 3), dtype=np.uint32)
    for row, may in enumerate(allowed.values()):
        for token in may:
            bits[row, token // 32] |= np.uint32(1 << token % 32)
    return Masks({sequence: row for row, sequence in enumerate(allowed)}, bits.view(np.int32))


def test_masks_said_after_the_launch_limit_their_own_draws(rig):
    """Decodes and prompts together, which a CPU computes apart; one of each is masked."""
    chunks = []
    for n, length in enumerate((1, 9, 1, 7)):
        prompt, own = tokens(20, seed=n), rig.pages(30)
        rig.launch([chunk(prompt[:-length], own)])
        asked = draw(GREEDY, masked=n < 2)
        chunks.append(chunk(prompt[-length:], own, start=20 - length, draw=asked))
    best = rig.logits(chunks)[[0, 9, 10, 17]].argmax(1).tolist()
    first, second = chunks[0].sequence, chunks[1].sequence
    found = rig.launch(chunks, masks_of({first: [70, 71], second: [best[1]]}))
    assert found[0].token in (70, 71)
    assert [drawn.token for drawn in found[1:]] == best[1:]


def test_a_sequence_that_ended_meanwhile_needs_no_mask(rig):
    found = rig.launch(
        [chunk(tokens(5), rig.pages(5), draw=draw(GREEDY, masked=True))], masks_of({})
    )
    assert found[0].token is not None
