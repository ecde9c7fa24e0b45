"""What may start at all, and the words of every refusal."""

import dataclasses
import math

import pytest

from engine.admission import Limits, Refusal
from engine.protocol import AdapterRef, Pooling, RefusalCode, Sampling, Submit

LIMITS = Limits(vocab_size=100, max_model_len=64, num_pages=8, page_tokens=4, adapters=False)


def submit(**changes: object) -> Submit:
    fields = {"tokens": [1, 2, 3], "max_tokens": 4, **changes}
    return Submit("r1", "t", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens": []}, "tokens"),
        ({"tokens": [100]}, "tokens"),
        ({"tokens": [-1]}, "tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"granted": -1}, "granted"),
        ({"sampling": Sampling(temperature=-0.1)}, "temperature"),
        ({"sampling": Sampling(temperature=math.nan)}, "temperature"),
        ({"sampling": Sampling(presence_penalty=math.inf)}, "penalties"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(min_p=1.1)}, "min_p"),
        ({"sampling": Sampling(top_k=-1)}, "top_k"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "repetition_penalty"),
        ({"sampling": Sampling(min_tokens=-1)}, "min_tokens"),
        ({"sampling": Sampling(logit_bias=[(100, 1.0)])}, "logit_bias"),
        ({"sampling": Sampling(logit_bias=[(1, math.nan)])}, "logit_bias"),
    ],
)
def test_a_field_outside_its_range_is_named(changes: dict[str, object], field: str) -> None:
    with pytest.raises(Refusal, match=field) as caught:
        LIMITS.admit(submit(**changes))
    assert caught.value.code is RefusalCode.INVALID


@pytest.mark.parametrize(("prompt", "limit"), [(3, 4), (29, 4)])
def test_what_fits_may_generate_what_it_asked_for(prompt: int, limit: int) -> None:
    assert LIMITS.admit(submit(tokens=[1] * prompt)) == limit


def test_a_prompt_that_leaves_no_token_is_too_long_and_the_numbers_are_said() -> None:
    with pytest.raises(Refusal, match=r"64 tokens; with one more .* of 64") as caught:
        LIMITS.admit(submit(tokens=[1] * 64))
    assert caught.value.code is RefusalCode.PROMPT_TOO_LONG


def test_a_text_that_becomes_a_vector_may_fill_the_context() -> None:
    roomy = dataclasses.replace(LIMITS, num_pages=16)
    whole = submit(tokens=[1] * 64, max_tokens=1, pooling=Pooling.LAST)
    assert roomy.admit(whole) == 1
    with pytest.raises(Refusal, match=r"65 tokens; it exceeds the context of 64") as caught:
        roomy.admit(submit(tokens=[1] * 65, max_tokens=1, pooling=Pooling.LAST))
    assert caught.value.code is RefusalCode.PROMPT_TOO_LONG


def test_more_pages_than_there_are_never_fit() -> None:
    with pytest.raises(Refusal, match="30 prompt tokens and 4 more need 9 pages") as caught:
        LIMITS.admit(submit(tokens=[1] * 30))
    assert caught.value.code is RefusalCode.NEVER_FITS


def test_without_a_store_no_adapter_is_known() -> None:
    with pytest.raises(Refusal) as caught:
        LIMITS.admit(submit(adapter=AdapterRef("d1", 8)))
    assert caught.value.code is RefusalCode.ADAPTER_MISSING
