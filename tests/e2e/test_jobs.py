"""Vectors and batches from a real engine: what nobody waits for, and what nobody reads."""

import json
import time

import numpy as np

from tests.e2e.server import Server


def test_texts_that_mean_the_same_are_closer_than_others_and_adapters_differ(server: Server):
    client, texts = server.client(), ["A cat sleeps.", "A kitten is asleep.", "Tax law of 1921."]
    found = client.embeddings.create(model=server.base, input=texts, extra_body={"pooling": "mean"})
    cat, kitten, law = (np.array(one.embedding) for one in found.data)
    assert abs(np.linalg.norm(cat) - 1) < 1e-5
    assert cat @ kitten > cat @ law
    last = [
        np.array(client.embeddings.create(model=model, input=texts[0]).data[0].embedding)
        for model in (server.base, server.base, server.adapters(0)[0])
    ]
    assert last[0] @ last[1] > 0.999 > last[0] @ last[2]


def test_a_batch_mixes_models_and_endpoints_answer_as_live_ones_do(server: Server):
    """Few tokens, of which the model is sure: others in the batch change the last bits."""
    client = server.client()
    models = [server.base, *server.adapters(0)]
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4,
            "temperature": 0}  # fmt: skip
    lines = [
        {"custom_id": model, "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": model, **body}}
        for model in models
    ]  # fmt: skip
    data = "\n".join(map(json.dumps, lines)).encode()
    sent = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 60
    while (batch := client.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)
    answers = client.files.content(batch.output_file_id).text.splitlines()
    for model, answer in zip(models, map(json.loads, answers), strict=True):
        found = answer["response"]["body"]
        live = client.chat.completions.create(model=model, **body)
        assert found["choices"][0]["message"]["content"] == live.choices[0].message.content
        assert found["usage"]["completion_tokens"] == live.usage.completion_tokens


def test_a_response_goes_on_from_the_one_before_as_the_same_chat_would(server: Server):
    client = server.client()
    fixed = {"model": server.base, "temperature": 0, "max_output_tokens": 8}
    first = client.responses.create(input="Say a colour.", **fixed)
    events = list(
        client.responses.create(
            input="Another one.", previous_response_id=first.id, stream=True, **fixed
        )
    )
    chat = client.chat.completions.create(
        model=server.base, temperature=0, max_tokens=8,
        messages=[
            {"role": "user", "content": "Say a colour."},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "Another one."},
        ],
    )  # fmt: skip
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == chat.choices[0].message.content
    assert client.responses.retrieve(events[-1].response.id).output_text
