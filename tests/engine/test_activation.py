"""An aLoRA acts from the last place where its prompt invokes it, and PEFT says where that is."""

import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft.tuners.lora.variants import calculate_alora_offsets

from engine.activation import NEVER, active_from
from tests.engine.harness import Harness, config
from tests.fakes.runner import alone, build

FEW = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(FEW, FEW.map(lambda tokens: tokens[:4]))
def test_it_is_where_peft_finds_it(prompt: list[int], invocation: list[int]) -> None:
    settings = {"a": SimpleNamespace(alora_invocation_tokens=invocation)}
    (offset,) = calculate_alora_offsets(settings, "a", torch.tensor([prompt]))
    wanted = NEVER if offset is None else len(prompt) - offset
    assert active_from(prompt, invocation) == wanted


def test_a_plain_lora_acts_from_the_start() -> None:
    assert active_from([1, 2, 3], ()) == 0


@pytest.mark.parametrize("token", [0, 0xD800, 0xDFFF, 0x10000, 151_935, 262_143])
def test_any_token_may_invoke(token: int) -> None:
    assert active_from([7, token, 7, token, 8], [token]) == 3


@pytest.mark.parametrize("length", [4, 99, 1024])
def test_no_prompt_makes_the_search_slow(length: int) -> None:
    zeros, begun = [0] * 131_072, time.process_time()
    assert active_from(zeros, [0] * (length - 1) + [1]) == NEVER
    assert active_from(zeros, [1] + [0] * (length - 1)) == NEVER
    assert time.process_time() - begun < 1


def test_the_base_s_rows_and_the_adapter_s_share_a_chunk() -> None:
    engine = Harness(config(max_num_batched_tokens=64), build(max_model_len=60))
    prompt = [5, 6, 9, 8, 7, 9, 8, 4, 3]
    engine.submit("r", prompt, 6, adapter="a1", invocation=[9, 8])
    engine.run()
    first = next(plan.chunks[0] for plan in engine.parts.runner.plans if plan.chunks)
    assert (len(first.tokens), first.base_rows) == (9, 5)
    assert engine.tokens("r") == alone(prompt, 6, seed=7, adapter="a1")[0]


@pytest.mark.parametrize("batched", [2, 3, 5])
def test_a_prompt_may_be_cut_anywhere(batched: int) -> None:
    narrow = config(max_num_batched_tokens=batched, max_num_seqs=1)
    engine = Harness(narrow, build(max_model_len=60))
    prompt = [5, 6, 9, 8, 7, 9, 8, 4, 3]
    engine.submit("r", prompt, 6, adapter="a1", invocation=[9, 8])
    engine.run()
    assert engine.tokens("r") == alone(prompt, 6, seed=7, adapter="a1")[0]


def test_what_nothing_invokes_is_the_base_whatever_it_generates() -> None:
    engine = Harness(config(), build(max_model_len=60))
    prompt = [5, 6, 7]
    plain = alone(prompt, 9, seed=7)[0]
    engine.submit("r", prompt, 9, adapter="a1", invocation=plain[2:4])
    engine.run()
    assert engine.tokens("r") == plain
