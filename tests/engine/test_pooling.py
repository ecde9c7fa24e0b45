"""A prompt as one vector: transformers' hidden states, pooled, however the prompt is computed."""

import numpy as np
import pytest
import torch
from peft import PeftModel

from adapters.base_spec import BaseSpec
from adapters.pack import pack
from engine.protocol import Finish, Pooling
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.harness import Harness, config
from tests.engine.peers import LINEARS, tokens, transformers_model, write_adapter
from tests.engine.rig import Rig, chunk, draw
from tests.fakes.runner import build

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
BOTH = list(Pooling)


@torch.no_grad()
def hidden(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    """[T, H], normed."""
    return model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]


def pooled(states: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    return states.mean(0) if pooling is Pooling.MEAN else states[-1]


def told(parts: list, count: int, pooling: Pooling) -> torch.Tensor:
    """What the chunks of one prompt brought, as the sequence adds it up."""
    vector = sum(part.pooled for part in parts if part.pooled is not None)
    return torch.from_numpy(vector / (count if pooling is Pooling.MEAN else 1)).float()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    shape = Shape(layers=2)
    return write_checkpoint(tmp_path_factory.mktemp("pool") / "m", shape, layout=Layout("gptq", 32))


@pytest.fixture(scope="module")
def dense(written):
    return transformers_model(written)


@pytest.mark.parametrize("pooling", BOTH)
@pytest.mark.parametrize(
    "lengths", [[1], [16, 16, 5], [17, 1], [300, 212]], ids=str
)  # the last fills the context
def test_the_vector_is_that_of_transformers_hidden_states(written, dense, pooling, lengths):
    rig, prompt = Rig(written.path), tokens(sum(lengths))
    pages, start, parts = rig.pages(len(prompt)), 0, []
    for length in lengths:
        last = start + length == len(prompt)
        wanted = pooling if last or pooling is Pooling.MEAN else None
        part = chunk(prompt[start : start + length], pages, start=start,
                     draw=draw() if last else None, pooling=wanted)  # fmt: skip
        other = chunk(tokens(9, seed=5), rig.pages(9), draw=draw(), pooling=Pooling.MEAN)
        parts.append(rig.launch([other, part])[1])
        start += length
    wanted = pooled(hidden(dense, prompt), pooling)
    torch.testing.assert_close(told(parts, len(prompt), pooling), wanted, **CLOSE)


def test_an_adapter_gives_pefts_hidden_states(written, tmp_path):
    pooling = Pooling.MEAN
    settings = {"r": 8, "lora_alpha": 16, "target_modules": LINEARS}
    path = write_adapter(tmp_path / "a", written, settings)
    rig, prompt = Rig(written.path), tokens(29)
    rig.load(3, pack(path, BaseSpec.from_checkpoint(written.path), torch.float32))
    part = chunk(prompt, rig.pages(29), adapter=3, draw=draw(), pooling=pooling)
    base = chunk(prompt, rig.pages(29), draw=draw(), pooling=pooling)
    drawn = rig.launch([base, part])
    model = PeftModel.from_pretrained(transformers_model(written), path).eval()
    torch.testing.assert_close(
        told([drawn[1]], 29, pooling), pooled(hidden(model, prompt), pooling), **CLOSE
    )
    assert np.abs(drawn[0].pooled - drawn[1].pooled).max() > 0.05


def test_it_does_not_show_who_shares_the_pass_or_where_a_prompt_is_cut(written):
    pooling = Pooling.MEAN
    rig = Rig(written.path, deterministic=True)
    prompt = tokens(19)

    def vector(cuts: list[int], crowd: int) -> bytes:
        pages, start, parts = rig.pages(19), 0, []
        for stop in [*cuts, 19]:
            part = chunk(prompt[start:stop], pages, start=start,
                         draw=draw() if stop == 19 else None, pooling=pooling)  # fmt: skip
            others = [chunk(tokens(7 + i, seed=i), rig.pages(16), draw=draw())
                      for i in range(crowd)]  # fmt: skip
            parts.append(rig.launch([*others, part])[-1])
            start = stop
        return told(parts, 19, pooling).numpy().tobytes()

    alone = vector([], 0)
    assert vector([5, 16], 1) == alone


def embedded(engine: Harness, request: str) -> list[float]:
    (output,) = engine.outputs[0, request]
    assert output.finish in (Finish.LENGTH, Finish.STOP)
    return np.frombuffer(output.embedding, "<f4").tolist()


def expected(prompt: list[int], pooling: Pooling) -> list[float]:
    """The fake runner gives each token itself and a one."""
    return [np.float32(np.mean(prompt) if pooling is Pooling.MEAN else prompt[-1]), 1.0]


@pytest.mark.parametrize("pooling", BOTH)
@pytest.mark.parametrize("length", [1, 4, 5, 16, 17, 50, 64])
def test_it_ends_after_its_prompt_whatever_chunks_that_takes(pooling, length):
    engine, prompt = Harness(), list(range(3, 3 + length))
    engine.submit(tokens=prompt, max_tokens=1, pooling=pooling)
    engine.submit("other", [9] * 30, 5)
    engine.run()
    assert embedded(engine, "r1") == expected(prompt, pooling)
    assert engine.outputs[0, "r1"][0].usage.prompt_tokens == length


@pytest.mark.parametrize("pooling", BOTH)
def test_a_prompt_computed_before_gives_the_same_vector(pooling):
    engine, prompt = Harness(), list(range(3, 30))
    for request in ("first", "second"):
        engine.submit(request, prompt, 1, pooling=pooling)
        engine.run()
        assert embedded(engine, request) == expected(prompt, pooling)
    cached = engine.outputs[0, "second"][0].usage.cached_tokens
    assert (cached > 0) == (pooling is Pooling.LAST)


@pytest.mark.parametrize("pooling", BOTH)
def test_a_prompt_that_had_to_yield_is_added_up_anew(pooling):
    engine = Harness(config(max_num_batched_tokens=8), build(num_pages=8, page_tokens=4))
    engine.submit("long", [5, 6, 7, 8], 20, priority=1)
    engine.step(2)
    prompt = list(range(10, 27))
    engine.submit("pooled", prompt, 1, pooling=pooling)
    engine.run()
    assert embedded(engine, "pooled") == expected(prompt, pooling)


def test_more_than_a_vector_cannot_be_asked_for_with_it():
    engine = Harness()
    engine.submit("many", max_tokens=2, pooling=Pooling.MEAN)
    engine.submit("several", max_tokens=1, n=2, pooling=Pooling.LAST)
    engine.run()
    assert all("pooling" in engine.refused[0, name].detail for name in ("many", "several"))
