"""``/v1/embeddings`` over the official client: vectors of length 1, however they are asked for."""

import struct

import numpy as np
import pytest
from openai import BadRequestError, NotFoundError

from engine.protocol import AdapterRef, Pooling, Submit
from gateway.inference.embedding import MOST_INPUTS, vector_of
from gateway.usage.record import Outcome
from tests.fakes.engine import HIDDEN, vector
from tests.gateway.serving import BASE, ask, post, serving


@pytest.fixture
async def server(tmp_path):
    async with serving(tmp_path) as started:
        yield started


def unit(submit: Submit, dimensions: int | None = None) -> np.ndarray:
    whole = np.array(struct.unpack(f"<{HIDDEN}f", vector(submit)))[:dimensions]
    return (whole / np.linalg.norm(whole)).astype(np.float32)


async def test_a_text_becomes_a_vector_of_length_one(server):
    found = await server.client().embeddings.create(model=BASE, input="Hello, world!")
    (one,) = found.data
    assert (found.object, found.model, one.object, one.index) == ("list", BASE, "embedding", 0)
    assert np.array_equal(np.float32(one.embedding), unit(server.last))
    assert abs(np.linalg.norm(one.embedding) - 1) < 1e-6
    assert found.usage.prompt_tokens == found.usage.total_tokens == len(server.last.tokens)
    assert (server.last.max_tokens, server.last.pooling) == (1, Pooling.LAST)


async def test_base64_and_float_say_the_same(server):
    client = server.client()
    several = ["Hello", "world", "häßlich 中文 🙂"]
    by_default = await client.embeddings.create(model=BASE, input=several)  # base64
    in_floats = await client.embeddings.create(model=BASE, input=several, encoding_format="float")
    assert [one.embedding for one in by_default.data] == [
        pytest.approx(one.embedding, abs=1e-7) for one in in_floats.data
    ]
    assert [one.index for one in in_floats.data] == [0, 1, 2]
    raw = await client.embeddings.with_raw_response.create(
        model=BASE, input="Hello", encoding_format="base64"
    )
    assert isinstance(raw.http_response.json()["data"][0]["embedding"], str)


async def test_token_ids_and_texts_are_the_same_input(server):
    client = server.client()
    ids = server.tokenizer.encode("Hello, world!", add_special=True)
    texts = await client.embeddings.create(model=BASE, input=["Hello, world!", "Hello"])
    tokens = await client.embeddings.create(model=BASE, input=ids)
    both = await client.embeddings.create(model=BASE, input=[ids, ids[:1]])
    assert texts.data[0].embedding == tokens.data[0].embedding == both.data[0].embedding
    assert both.usage.prompt_tokens == len(ids) + 1


async def test_dimensions_cut_the_vector_and_leave_it_of_length_one(server):
    found = await server.client().embeddings.create(model=BASE, input="Hello", dimensions=3)
    assert np.array_equal(np.float32(found.data[0].embedding), unit(server.last, 3))


async def test_an_adapter_and_a_mean_are_other_vectors(server):
    client, seen = server.client(), []
    for model, more in ((BASE, {}), ("support", {}), (BASE, {"pooling": "mean"})):
        found = await client.embeddings.create(model=model, input="Hello", extra_body=more)
        seen.append(tuple(found.data[0].embedding))
    assert len(set(seen)) == 3
    assert server.engine.submitted[1].adapter == AdapterRef("d" * 64, 8)
    assert server.last.pooling is Pooling.MEAN


async def test_input_tokens_alone_are_billed(server):
    found = await server.client().embeddings.create(model=BASE, input=["Hello", "world"])
    (ended,) = server.recorder.ended
    assert (ended.outcome, ended.completion_tokens) == (Outcome.COMPLETED, 0)
    assert ended.prompt_tokens == found.usage.prompt_tokens
    assert server.recorder.records[0].endpoint == "embeddings"


REFUSED = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": ["a", 1]}, "input[1]"),
    ({"input": [1, "a"]}, "input[1]"),
    ({"input": [[1], []]}, "input[1]"),
    ({"input": [-1]}, "input[0]"),
    ({"input": [100_000]}, "input[0]"),
    ({"input": {"a": 1}}, "input"),
    ({"input": "a\0b"}, "input"),
    ({"input": ["a"] * (MOST_INPUTS + 1)}, "input"),
    ({"input": [5] * 600}, "input"),
    ({"input": [[5], [5] * 600]}, "input[1]"),
    ({"encoding_format": "int8"}, "encoding_format"),
    ({"dimensions": 0}, "dimensions"),
    ({"dimensions": HIDDEN + 1}, "dimensions"),
    ({"dimensions": "3"}, "dimensions"),
    ({"pooling": "max"}, "pooling"),
    ({"user": "x" * 300}, "user"),
    ({"model": ""}, "model"),
]


async def test_what_cannot_be_is_refused_with_its_field(server):
    for change, param in REFUSED:
        body = {"model": BASE, "input": "a"} | change
        got = await ask(server.port, post(body, path="/v1/embeddings"))
        assert (got.status, got.error["param"]) == (400, param), got.body
    assert server.engine.submitted == []


async def test_truncation_keeps_the_end_of_a_long_input(server):
    client, tokens = server.client(), [5 + i % 100 for i in range(600)]
    more = {"truncate_prompt_tokens": 4}
    await client.embeddings.create(model=BASE, input=tokens, extra_body=more)
    assert server.last.tokens == tokens[-4:]
    with pytest.raises(BadRequestError) as refused:
        await client.embeddings.create(model=BASE, input=tokens)
    assert refused.value.code == "context_length_exceeded"
    assert "600 tokens. Please" in refused.value.message  # and nothing of an answer
    whole = await client.embeddings.create(model=BASE, input=tokens[:512])
    assert whole.usage.prompt_tokens == 512
    with pytest.raises(BadRequestError):
        await client.embeddings.create(model=BASE, input=tokens[:513])


async def test_others_models_are_unknown_and_unknown_fields_are_named(server):
    with pytest.raises(NotFoundError):
        await server.client("sk-globex").embeddings.create(model="support", input="a")
    got = await ask(
        server.port, post({"model": BASE, "input": "a", "odd": 1}, path="/v1/embeddings")
    )
    assert got.headers["x-ignored-params"] == "odd"


async def test_an_engine_that_fails_is_told_as_it_is_elsewhere(server):
    server.engine.knobs.fail_after = 0
    got = await ask(server.port, post({"model": BASE, "input": "a"}, path="/v1/embeddings"))
    assert (got.status, got.error["code"]) == (500, "engine_failed")


def test_a_vector_of_zeros_stays_one():
    assert vector_of(bytes(12), None).tolist() == [0.0, 0.0, 0.0]
