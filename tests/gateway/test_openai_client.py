"""The official client, unchanged, against a real server."""

import asyncio

import openai
import pytest

from gateway.usage.record import Outcome
from tests.fakes.clock import until
from tests.gateway.serving import BASE, KEY, ask, serving

CHINESE = [{"role": "user", "content": "你好, 你是谁?"}]


async def test_a_chat(tmp_path):
    async with serving(tmp_path) as server, server.client() as client:
        server.say("你好 🙂")
        answer = await client.chat.completions.create(model=BASE, messages=CHINESE)
        assert answer.choices[0].message.content == "你好 🙂"
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        assert answer._request_id.startswith("req_")


async def test_a_stream_with_usage(tmp_path):
    async with serving(tmp_path) as server, server.client() as client:
        server.say("日本語 and 🙂🚀")
        stream = await client.chat.completions.create(
            model=BASE, messages=CHINESE, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "日本語 and 🙂🚀"
        assert chunks[-1].usage.total_tokens > 0


async def test_completions_models_and_logprobs(tmp_path):
    async with serving(tmp_path) as server, server.client() as client:
        server.say("abc")
        done = await client.completions.create(model=BASE, prompt=["a", "b"], logprobs=1)
        assert [choice.text for choice in done.choices] == ["abc", "abc"]
        assert done.choices[0].logprobs.tokens
        assert [m.id async for m in client.models.list()] == [BASE, "support", "json"]
        assert (await client.models.retrieve("support")).owned_by == "acme"
        chat = await client.chat.completions.create(
            model=BASE, messages=CHINESE, logprobs=True, top_logprobs=3
        )
        assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 3


async def test_extras_go_in_extra_body(tmp_path):
    async with serving(tmp_path) as server, server.client() as client:
        await client.chat.completions.create(
            model="json", messages=CHINESE, max_completion_tokens=3,
            extra_body={"top_k": 5, "repetition_penalty": 1.1},
        )  # fmt: skip
        assert server.last.sampling.top_k == 5


async def test_errors_are_the_clients_own_classes(tmp_path):
    async with serving(tmp_path) as server:
        async with server.client("sk-wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with server.client() as client:
            with pytest.raises(openai.NotFoundError) as missing:
                await client.chat.completions.create(model="nobody", messages=CHINESE)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as bad:
                await client.chat.completions.create(model=BASE, messages=[])
            assert bad.value.param == "messages"
            server.engine.knobs.die_after = 2
            server.engine.knobs.token_delay_s = 0.01
            stream = await client.chat.completions.create(model=BASE, messages=CHINESE, stream=True)
            with pytest.raises(openai.APIError, match="lost"):
                async for _ in stream:
                    pass


async def test_leaving_a_stream_cancels_it(tmp_path):
    async with serving(tmp_path) as server, server.client() as client:
        server.engine.knobs.token_delay_s = 0.01
        stream = await client.chat.completions.create(model=BASE, messages=CHINESE, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: bool(server.recorder.ended))
        assert server.recorder.ended[0].outcome is Outcome.CANCELLED
        assert server.engine.open == 0


async def test_many_at_once_get_their_own_answers(tmp_path):
    async with serving(tmp_path) as server, server.client() as client:

        async def one(i):
            answer = await client.completions.create(model=BASE, prompt=str(i % 10), max_tokens=4)
            assert answer.choices[0].text == str(i % 10) * 4

        await asyncio.gather(*(one(i) for i in range(40)))


async def test_open_mode_takes_any_key_from_this_machine(tmp_path):
    async with serving(tmp_path, is_open=True) as server, server.client("EMPTY") as client:
        server.say("ok")
        answer = await client.chat.completions.create(model="support", messages=CHINESE)
        assert answer.choices[0].message.content == "ok"
        assert server.last.tenant == server.snapshot.keys[KEY].tenant


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"x-forwarded-for": "203.0.113.9"}, {"forwarded": "for=1.2.3.4"}],
    ids=str,
)
async def test_open_mode_refuses_whoever_comes_from_elsewhere(tmp_path, headers):
    async with serving(tmp_path, is_open=True) as server, server.client("EMPTY") as client:
        with pytest.raises(openai.PermissionDeniedError):
            await client.with_options(default_headers=headers).models.list()


@pytest.mark.parametrize("header", ["x: y", "authorization: Bearer ", "authorization: Bearer x"])
async def test_open_mode_needs_no_key_at_all(tmp_path, header):
    async with serving(tmp_path, is_open=True) as server:
        request = f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{header}\r\nconnection: close\r\n"
        assert (await ask(server.port, request.encode() + b"\r\n")).status == 200
