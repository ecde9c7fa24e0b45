"""Chat, not streamed: OpenAI's shapes, what the engine is asked for, and what is recorded."""

import pytest

from gateway.usage.record import Outcome, Started
from tests.gateway.serving import BASE, KEY, LIMITED_KEY, ask, post, raw, serving

HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {"model": BASE, "messages": HELLO}


async def test_a_chat_is_answered_in_openais_shape(tmp_path):
    async with serving(tmp_path) as server:
        server.say("Hello, world!")
        got = await ask(server.port, post(ASKED))
        assert got.status == 200
        answer = got.json
        assert answer["object"] == "chat.completion"
        assert answer["id"].startswith("chatcmpl-")
        assert got.headers["x-request-id"] == "req_" + answer["id"].removeprefix("chatcmpl-")
        assert (answer["model"], answer["system_fingerprint"]) == (BASE, "fp_base")
        assert answer["choices"] == [{
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!", "refusal": None,
                        "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }]  # fmt: skip
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(server.last.tokens)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert int(got.headers["openai-processing-ms"]) >= 0
        assert "x-ignored-params" not in got.headers


async def test_the_engine_is_asked_for_exactly_what_the_client_wants(tmp_path):
    async with serving(tmp_path, context=300) as server:
        body = {**ASKED, "model": "support", "temperature": 0.5, "seed": 7, "max_tokens": 5, "n": 2,
                "top_k": 9, "logit_bias": {"3": -100}, "stop_token_ids": [4], "ignore_eos": True,
                "logprobs": True, "top_logprobs": 2}  # fmt: skip
        await ask(server.port, post(body))
        sent = server.last
        assert sent.adapter is not None
        assert sent.adapter.digest == "d" * 64
        assert sent.tenant == "hash-acme"
        assert (sent.n, sent.max_tokens, sent.logprobs, sent.stop_tokens) == (2, 5, 2, [4])
        assert (sent.sampling.temperature, sent.sampling.seed, sent.sampling.top_k) == (0.5, 7, 9)
        assert sent.sampling.logit_bias == [(3, -100.0)]
        assert sent.ignore_eos
        assert sent.deadline_ms == 30_000


async def test_max_tokens_is_clamped_to_what_the_context_leaves(tmp_path):
    async with serving(tmp_path, context=100) as server:
        got = await ask(server.port, post({**ASKED, "max_tokens": 10**6}))
        assert server.last.max_tokens == 100 - len(server.last.tokens)
        assert got.json["choices"][0]["finish_reason"] == "length"
        await ask(server.port, post(ASKED))
        assert server.last.max_tokens == 100 - len(server.last.tokens)


async def test_choices_share_one_prompt_in_the_usage(tmp_path):
    async with serving(tmp_path) as server:
        server.say("abc")
        got = await ask(server.port, post({**ASKED, "n": 3}))
        assert [choice["index"] for choice in got.json["choices"]] == [0, 1, 2]
        each = len(server.tokenizer.encode("abc", add_special=False)) + 1
        assert got.json["usage"]["completion_tokens"] == 3 * each
        assert got.json["usage"]["prompt_tokens"] == len(server.last.tokens)


async def test_choices_of_several_lengths_are_billed_each_by_its_own(tmp_path):
    async with serving(tmp_path) as server:
        texts = ["a", "The quick stop fox", "dog"]
        tokens = [server.tokenizer.encode(text, add_special=False) for text in texts]
        server.engine.knobs.choices = tokens
        for stream in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
            got = await ask(server.port, post({**ASKED, "n": 3, "stop": " stop", **stream}))
            assert got.status == 200
        cut = len(server.tokenizer.encode("The quick stop", add_special=False))
        each = (len(tokens[0]) + 1, cut, len(tokens[2]) + 1)  # one ends at a stop string
        assert [ended.completion_tokens for ended in server.recorder.ended] == [sum(each)] * 2
        prompt = len(server.last.tokens)
        assert [ended.prompt_tokens for ended in server.recorder.ended] == [prompt] * 2


async def test_every_answer_to_a_key_says_for_whom_it_is(tmp_path):
    async with serving(tmp_path) as server:
        for request in (post(ASKED), post({**ASKED, "n": 0}), post({**ASKED, "stream": True})):
            headers = (await ask(server.port, request)).headers
            assert headers["openai-organization"] == "org_1"
            assert headers["openai-version"] == "2020-10-01"
            assert headers["openai-processing-ms"].isdigit()
            assert headers["x-request-id"].startswith("req_")


async def test_a_stop_string_cuts_text_and_bill_and_cancels_the_engine(tmp_path):
    async with serving(tmp_path) as server:
        server.say("The quick brown fox jumps")
        server.engine.knobs.token_delay_s = 0.01
        got = await ask(server.port, post({**ASKED, "stop": ["own fox"]}))
        choice = got.json["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("The quick br", "stop")
        assert server.engine.open == 0
        until_stop = len(server.tokenizer.encode("The quick brown fox", add_special=False))
        assert got.json["usage"]["completion_tokens"] == until_stop
        assert server.recorder.ended[0].completion_tokens == until_stop


async def test_logprobs_are_complete_and_spelled_in_bytes(tmp_path):
    async with serving(tmp_path) as server:
        server.say("Hello 🙂")
        got = await ask(server.port, post({**ASKED, "logprobs": True, "top_logprobs": 2}))
        content = got.json["choices"][0]["logprobs"]["content"]
        assert bytes(b for token in content for b in token["bytes"]).decode() == "Hello 🙂"
        assert all(
            token["logprob"] == -0.5 and len(token["top_logprobs"]) == 2 for token in content
        )


async def test_every_request_has_one_start_and_one_end(tmp_path):
    async with serving(tmp_path) as server:
        server.say("abc")
        got = await ask(server.port, post({**ASKED, "model": "support"}))
        started, finished = server.recorder.records
        assert isinstance(started, Started)
        assert started.request == finished.request == got.headers["x-request-id"]
        assert (started.project, started.key) == ("prj_acme", "key_acme")
        assert (started.model, started.adapter_id, started.digest) == (
            "support", "adp_support", "d" * 64,
        )  # fmt: skip
        assert started.endpoint == "chat.completions"
        assert finished.outcome is Outcome.COMPLETED
        assert finished.finish_reason == "stop"
        assert (finished.engine, finished.boot) == ("fake", "boot-1")
        assert finished.prompt_tokens == got.json["usage"]["prompt_tokens"]
        assert finished.completion_tokens == got.json["usage"]["completion_tokens"]


async def test_answers_of_every_route_tell_what_is_left_of_the_limits(tmp_path, database):
    async with serving(tmp_path, database=database) as server:
        for path in (b"/v1/responses/resp_x", b"/v1/nothing", b"/v1/models"):
            sent = b"GET %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n"
            answer = await raw(server.port, sent % (path, LIMITED_KEY.encode()), read=4000)
            head = answer.partition(b"\r\n\r\n")[0].decode().lower()
            assert "x-ratelimit-limit-requests: 3\r\n" in head, head
            assert "x-ratelimit-remaining-requests: 3\r\n" in head
            assert head.count("x-request-id") == 1
            nobody = await raw(server.port, sent % (path, b"sk-live-wrong"), read=4000)
            assert b"x-ratelimit" not in nobody


async def test_unused_reservations_go_back(tmp_path):
    async with serving(tmp_path) as server:
        server.say("abc")
        first = await ask(server.port, post({**ASKED, "max_tokens": 180}, key=LIMITED_KEY))
        used = first.json["usage"]["total_tokens"]
        second = await ask(server.port, post({**ASKED, "max_tokens": 180}, key=LIMITED_KEY))
        assert second.status == 200
        left = 300 - used - (180 + first.json["usage"]["prompt_tokens"])
        assert int(second.headers["x-ratelimit-remaining-tokens"]) >= left
        assert first.headers["x-ratelimit-limit-requests"] == "3"


async def test_ignored_fields_are_named_in_a_header_that_cannot_be_forged(tmp_path):
    async with serving(tmp_path) as server:
        server.say("x")
        got = await ask(server.port, post({**ASKED, "store": True, "b\r\nx-evil: 1": 1, "ü": 2}))
        assert got.status == 200
        assert got.headers["x-ignored-params"] == "b??x-evil: 1, store, ?"
        assert "x-evil" not in got.headers


@pytest.mark.parametrize("content", ["", "Hé\tllo\n", "中文 🙂"])
async def test_any_honest_content_is_answered(tmp_path, content):
    async with serving(tmp_path) as server:
        server.say("x")
        body = {"model": BASE, "messages": [{"role": "user", "content": content}]}
        assert (await ask(server.port, post(body, key=KEY))).status == 200
