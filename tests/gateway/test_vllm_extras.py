"""vLLM's extra fields: tokens that alone may come, words that must not, what a prompt was like."""

import pytest

from tests.gateway.serving import BASE, ask, post, serving

CHAT = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
TEXT = {"model": BASE, "prompt": "Hello, world!", "max_tokens": 4}
COMPLETIONS = "/v1/completions"


async def test_allowed_tokens_and_bad_words_reach_the_engine(tmp_path):
    async with serving(tmp_path) as server:
        body = {**CHAT, "allowed_token_ids": [7, 5, 7], "bad_words": ["fox", " dog"]}
        assert (await ask(server.port, post(body))).status == 200
        sampling = server.last.sampling
        assert sampling.allowed == [7, 5]

        def spelled(text):
            return server.tokenizer.encode(text, add_special=False)

        assert spelled("fox") in sampling.bad_words
        assert spelled(" fox") in sampling.bad_words or len(spelled(" fox")) != len(spelled("fox"))
        assert spelled("dog") in sampling.bad_words
        assert all(sampling.bad_words)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"allowed_token_ids": [5, 10**6]}, "allowed_token_ids"),
        ({"allowed_token_ids": [5], "guided_regex": "a*"}, "allowed_token_ids"),
        ({"bad_words": ["a"], "response_format": {"type": "json_object"}}, "bad_words"),
    ],
)
async def test_what_cannot_be_done_together_is_refused(tmp_path, more, param):
    async with serving(tmp_path) as server:
        got = await ask(server.port, post({**CHAT, **more}))
        assert (got.status, got.json["error"]["param"]) == (400, param)


async def test_a_completion_tells_how_likely_its_prompts_were(tmp_path):
    async with serving(tmp_path) as server:
        body = {**TEXT, "prompt": ["Hello, world!", "stop"], "prompt_logprobs": 1, "n": 2}
        got = await ask(server.port, post(body, path=COMPLETIONS))
        choices = got.json["choices"]
        prompts = [submit.tokens for submit in server.engine.submitted]
        for i, choice in enumerate(choices):
            told = choice["prompt_logprobs"]
            tokens = min(prompts, key=lambda p: abs(len(p) - len(told)))
            assert told[0] is None
            assert len(told) == len(tokens)
            for token, facts in zip(tokens[1:], told[1:], strict=True):
                assert facts[str(token)]["logprob"] == -1.0
                assert facts[str(token)]["decoded_token"] == server.tokenizer.text_of(token)
            assert choice["index"] == i


async def test_a_chat_tells_it_once_and_only_where_it_is_asked(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, post({**CHAT, "prompt_logprobs": 0, "n": 2}))
        assert len(got.json["prompt_logprobs"]) == len(server.last.tokens)
        assert all("prompt_logprobs" not in choice for choice in got.json["choices"])
        assert "prompt_logprobs" not in (await ask(server.port, post(CHAT))).json
        streamed = await ask(server.port, post({**CHAT, "prompt_logprobs": 0, "stream": True}))
        assert streamed.json["error"]["param"] == "prompt_logprobs"


async def test_an_echo_keeps_its_own_number_of_alternatives(tmp_path):
    async with serving(tmp_path) as server:
        body = {**TEXT, "echo": True, "logprobs": 1, "prompt_logprobs": 3}
        got = await ask(server.port, post(body, path=COMPLETIONS))
        (choice,) = got.json["choices"]
        assert server.last.prompt_logprobs == 3
        assert all(len(top or {}) <= 2 for top in choice["logprobs"]["top_logprobs"])
        assert max(len(facts or {}) for facts in choice["prompt_logprobs"]) > 2
