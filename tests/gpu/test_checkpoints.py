"""On a GPU, checkpoints of real shapes compute what their dequantised weights say.

Each engine starts in this process, one after the other; a 70B checkpoint takes about 45 GB of disk
and is written only with LORATORIO_TEST_70B=1.
"""

import gc
import os
from dataclasses import replace

import pytest
import torch

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.bench.checkpoints import CheckpointWriter
from engine.bench.correct import DECODED, PROMPT, TOLERANCE, agreement, trial
from engine.bench.shapes import LLAMA_8B, LLAMA_70B
from engine.config import EngineConfig
from engine.pages import Kind, Owner
from engine.step import Chunk, StepPlan

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MIXED_RANKS = (8, 16, 32, 64)


@pytest.fixture(scope="module", params=["awq", "gptq", "gptq-act-order"])
def checkpoint(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / request.param
    CheckpointWriter(LLAMA_8B, request.param).write(path)
    yield path
    for file in path.iterdir():
        file.unlink()


def lone_engine(path, **settings):
    gc.collect()
    torch.cuda.empty_cache()
    return LoneEngine(
        EngineConfig(
            model=str(path), max_model_len=2048, max_num_seqs=128, max_num_batched_tokens=2048,
            max_adapter_loads=64, **settings,
        )
    )  # fmt: skip


def full_load_peak(engine, refs):
    """Bytes of the device in use at most, by anybody, while every sequence place is taken."""
    for i in range(128):
        ref = refs[i % len(refs)] if refs else None
        engine.submit(f"load {i}", engine.random_prompt(100, seed=i), 8, ref)
    least_free = torch.cuda.mem_get_info()[0]
    for _ in engine.passes(Requests()):
        least_free = min(least_free, torch.cuda.mem_get_info()[0])
    return torch.cuda.mem_get_info()[1] - least_free


def divergence(engine, found):
    """Mean Kullback-Leibler divergence of the engine's logits from float32, over all positions.

    The sequences are computed again, whole and in one eager pass, since only this gives every
    logit and not just the likeliest.
    """
    runner, pool = engine.built.runner, engine.core.pool
    size, chunks = engine.core._config.page_tokens, []
    for number, (tokens, ref) in enumerate(zip(found.sequences, found.refs, strict=True)):
        pages = pool.allocate(-(-len(tokens) // size), Owner(Kind.KV, f"divergence {number}"))
        assert pages is not None
        row = -1 if ref is None else engine.core.residency._resident[ref.digest]
        chunks.append(Chunk(sequence=number, tokens=tokens, start=0, pages=pages, adapter=row))
    with torch.inference_mode():
        inputs = runner._builder.build(StepPlan(chunks))
        rows = torch.arange(inputs.tokens.numel(), device=engine.device)
        hidden = runner._model(
            replace(inputs, head_rows=rows), runner._memory.layers, runner._lora(inputs)
        )
        total, count = 0.0, 0
        at = 0
        for expected in found.reference:
            ours = runner._model.head(hidden[at : at + len(expected)]).log_softmax(-1)
            truth = expected.log_softmax(-1)
            total += float((truth.exp() * (truth - ours)).sum())
            at, count = at + len(expected), count + len(expected)
    return total / count


@pytest.mark.parametrize(("adapters", "eager"), [(0, True), (64, False)], ids=["base", "graphs"])
def test_an_8b_checkpoint_matches_its_dequantised_weights(checkpoint, adapters, eager):
    engine = lone_engine(checkpoint, enforce_eager=eager)
    made = [adapter_ref(i, MIXED_RANKS[i % 4]) for i in range(adapters)]
    assert full_load_peak(engine, made) <= 0.9 * torch.cuda.mem_get_info()[1]
    found = trial(engine, checkpoint, [None, *made, None])
    agreed = agreement(found)
    assert agreed.compared >= 20 * (PROMPT + DECODED - 1) * (adapters + 2)
    assert agreed.worst <= TOLERANCE
    assert divergence(engine, found) <= 1e-3


@pytest.mark.skipif(not os.environ.get("LORATORIO_TEST_70B"), reason="writes 45 GB to disk")
def test_a_70b_checkpoint_with_16_adapters_answers_right_on_one_gpu(tmp_path):
    CheckpointWriter(LLAMA_70B, "awq").write(tmp_path)
    engine = lone_engine(tmp_path)
    found = trial(engine, tmp_path, [None, *(adapter_ref(i, 16) for i in range(16))])
    assert agreement(found).worst <= TOLERANCE
