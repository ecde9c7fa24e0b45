"""What a client may ask about tokens, held to the model: a real engine behind a real wire."""

import json
import urllib.request
from typing import Any

import pytest

from tests.e2e.server import Server

PROMPT = "The capital of France is"
GREEDY = {"max_tokens": 6, "temperature": 0, "logprobs": 1}


def asked(server: Server, path: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        server.ready["base_url"].removesuffix("/v1") + path,
        json.dumps(body).encode(),
        {"authorization": f"Bearer {server.tenant(0)['api_key']}",
         "content-type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def tokens_of(server: Server, text: str) -> list[int]:
    found: list[int] = asked(server, "/tokenize", prompt=text)["tokens"]
    return found


@pytest.mark.parametrize("which", ["base", "adapter"])
def test_an_echo_scores_tokens_as_generating_them_did(server: Server, which: str):
    """A log-likelihood as evaluation harnesses ask for it, in one batch of token ids."""
    model = server.base if which == "base" else server.adapters(0)[0]
    client = server.client()
    generated = client.completions.create(model=model, prompt=PROMPT, **GREEDY).choices[0]
    assert generated.logprobs is not None
    prompt = tokens_of(server, PROMPT)
    whole = prompt + tokens_of(server, generated.text)
    scored = client.completions.create(
        model=model, prompt=[whole, prompt], max_tokens=0, echo=True, logprobs=1
    )
    first, second = scored.choices
    assert (first.index, second.index) == (0, 1)
    assert first.text == PROMPT + generated.text
    assert first.logprobs is not None
    assert first.logprobs.token_logprobs is not None
    assert first.logprobs.token_logprobs[0] is None
    found = first.logprobs.token_logprobs[len(prompt) :]
    assert found == pytest.approx(generated.logprobs.token_logprobs, abs=0.05)
    assert second.logprobs is not None
    assert second.logprobs.token_logprobs[1:] == pytest.approx(
        first.logprobs.token_logprobs[1 : len(prompt)], abs=0.05
    )
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0
    assert scored.usage.prompt_tokens == len(whole) + len(prompt)


def test_a_bias_forces_a_token_and_bars_one(server: Server):
    client = server.client()
    (banana,) = tokens_of(server, " banana")
    forced = client.completions.create(
        model=server.base, prompt=PROMPT, max_tokens=3, logit_bias={str(banana): 100}, logprobs=5
    ).choices[0]
    assert forced.text == " banana" * 3
    assert forced.logprobs is not None
    assert all(value > -1e4 for top in forced.logprobs.top_logprobs or () for value in top.values())
    free = client.completions.create(model=server.base, prompt=PROMPT, **GREEDY).choices[0]
    first = tokens_of(server, free.text)[0]
    barred = client.completions.create(
        model=server.base, prompt=PROMPT, **GREEDY, logit_bias={str(first): -100}
    ).choices[0]
    assert tokens_of(server, barred.text)[0] != first


def test_every_seed_is_another_draw(server: Server):
    client = server.client()
    texts = [
        client.completions.create(
            model=server.base, prompt="Once", max_tokens=6, temperature=2, seed=seed
        )
        .choices[0]
        .text
        for seed in (-1, 2**63 - 1, -(2**63), 0)
    ]
    assert len(set(texts)) == 4


def test_the_likeliest_of_several_is_no_less_likely_than_any(server: Server):
    client = server.client()
    warm = {"model": server.base, "prompt": PROMPT, "max_tokens": 5, "seed": 3, "logprobs": 0}
    all_four = client.completions.create(**warm, n=4)
    best = client.completions.create(**warm, best_of=4)

    def mean(choice: Any) -> float:
        chances: list[float] = choice.logprobs.token_logprobs
        return sum(chances) / len(chances)

    assert mean(best.choices[0]) == pytest.approx(max(map(mean, all_four.choices)), abs=0.05)
    assert best.usage is not None
    assert all_four.usage is not None
    assert best.usage.completion_tokens == all_four.usage.completion_tokens


def test_what_was_tokenised_reads_as_it_was(server: Server):
    text = "Grüße aus 東京 🙂🚀 <|im_end|>"
    assert asked(server, "/detokenize", tokens=tokens_of(server, text)) == {"prompt": text}
    chat = {"messages": [{"role": "user", "content": text}]}
    counted = asked(server, "/tokenize", **chat)
    answered = asked(server, "/v1/chat/completions", model=server.base, max_tokens=1, **chat)
    assert counted["count"] == answered["usage"]["prompt_tokens"]
