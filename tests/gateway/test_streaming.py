"""Server-sent events: frames, usage, ends, and clients or engines that vanish."""

import asyncio
import json
import socket

import pytest

from engine.protocol import Cancel
from gateway.usage.record import Outcome
from tests.fakes.clock import until
from tests.gateway.serving import BASE, ask, post, raw, serving

HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {"model": BASE, "messages": HELLO, "stream": True}


def frames(body):
    """The data of every event; the last is [DONE], and no event is empty."""
    events = body.decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and len(event) > 6 for event in events)
    *data, done = [event.removeprefix("data: ") for event in events]
    assert done == "[DONE]"
    return [json.loads(item) for item in data]


def content(chunks, index=0):
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks
        for choice in chunk.get("choices", ())
        if choice["index"] == index
    )


async def test_a_stream_begins_with_the_role_and_ends_with_a_reason(tmp_path):
    async with serving(tmp_path) as server:
        server.say("Hello, 中文 🙂!")
        got = await ask(server.port, post(ASKED))
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        first, *_, last = chunks = frames(got.body)
        assert first["object"] == "chat.completion.chunk"
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert content(chunks) == "Hello, 中文 🙂!"
        assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
        assert not any("usage" in chunk for chunk in chunks)


async def test_usage_comes_once_and_last_and_only_when_asked_for(tmp_path):
    async with serving(tmp_path) as server:
        server.say("abc")
        asked = {**ASKED, "stream_options": {"include_usage": True}}
        *chunks, last = frames((await ask(server.port, post(asked))).body)
        assert last["choices"] == []
        assert last["usage"]["prompt_tokens"] == len(server.last.tokens)
        assert all(chunk["usage"] is None for chunk in chunks)
        quiet = {**ASKED, "stream_options": {}}
        assert not any("usage" in c for c in frames((await ask(server.port, post(quiet))).body))
        ended = server.recorder.ended
        assert ended[0].completion_tokens == ended[1].completion_tokens > 0


async def test_choices_are_interleaved_and_each_ends_once(tmp_path):
    async with serving(tmp_path) as server:
        server.say("abc def")
        chunks = frames((await ask(server.port, post({**ASKED, "n": 3}))).body)
        assert [content(chunks, index) for index in range(3)] == ["abc def"] * 3
        reasons = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
        assert sorted(reasons) == [0, 1, 2]


@pytest.mark.parametrize("per_step", [1, 3, 100])
async def test_a_stop_string_is_never_shown_however_tokens_arrive(tmp_path, per_step):
    async with serving(tmp_path) as server:
        server.say("Hello\nUser: more text")
        server.engine.knobs.tokens_per_step = per_step
        chunks = frames((await ask(server.port, post({**ASKED, "stop": ["\nUser:"]}))).body)
        assert content(chunks) == "Hello"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_tokens_that_are_ready_together_are_one_frame(tmp_path):
    async with serving(tmp_path) as server:
        server.say("The quick brown fox jumps over the lazy dog")
        server.engine.knobs.tokens_per_step = 1000
        chunks = frames((await ask(server.port, post(ASKED))).body)
        assert len(chunks) == 3


async def test_streamed_logprobs_cover_every_token_once(tmp_path):
    async with serving(tmp_path) as server:
        server.say("Hello 🙂")
        chunks = frames((await ask(server.port, post({**ASKED, "logprobs": True}))).body)
        tokens = [
            token
            for chunk in chunks
            for token in (chunk["choices"][0]["logprobs"] or {}).get("content", [])
        ]
        assert bytes(b for token in tokens for b in token["bytes"]).decode() == "Hello 🙂"


async def test_streamed_completions_have_their_own_shape(tmp_path):
    async with serving(tmp_path) as server:
        server.say(" there")
        body = {"model": BASE, "prompt": "Hello", "stream": True, "echo": True, "max_tokens": 20}
        got = await ask(server.port, post(body, path="/v1/completions"))
        chunks = frames(got.body)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello there"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert all(chunk["object"] == "text_completion" for chunk in chunks)


async def test_the_record_is_written_before_the_last_byte(tmp_path):
    async with serving(tmp_path) as server:
        server.say("abc")
        server.recorder.delay_s = 0.3
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(ASKED))
        seen = b""
        while b'finish_reason":"stop' not in seen:
            seen += await reader.read(4096)
        assert server.recorder.ended == []
        assert b"[DONE]" not in seen
        rest = await reader.read()
        assert b"[DONE]" in rest
        assert len(server.recorder.ended) == 1
        writer.close()


async def leave(server, body, *, after):
    """Send, wait until ``after`` holds, hang up."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(body))
    await until(after)
    writer.transport.abort()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token_stops_the_engine(tmp_path, stream):
    async with serving(tmp_path) as server:
        server.engine.knobs.first_delay_s = 30.0
        await leave(server, {**ASKED, "stream": stream}, after=lambda: server.engine.open == 1)
        await until(lambda: bool(server.recorder.ended), 2.0)
        assert server.engine.open == 0
        assert server.recorder.ended[0].outcome is Outcome.CANCELLED


async def test_a_client_that_leaves_mid_stream_is_billed_by_the_engines_count(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.knobs.token_delay_s = 0.005

        def some():
            return any(r.completion_tokens > 5 for r in server.engine.record.values())

        await leave(server, ASKED, after=some)
        await until(lambda: bool(server.recorder.ended), 2.0)
        ended = server.recorder.ended[0]
        assert ended.outcome is Outcome.CANCELLED
        assert ended.completion_tokens == server.engine.record[ended.request].completion_tokens
        assert ended.prompt_tokens == len(server.last.tokens)


async def test_a_client_that_leaves_a_deaf_engine_is_billed_by_what_arrived(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.knobs.hang_after, server.engine.knobs.deaf = 3, True

        def three():
            return any(r.completion_tokens == 3 for r in server.engine.record.values())

        await leave(server, ASKED, after=three)
        await until(lambda: bool(server.recorder.ended), 5.0)
        assert server.recorder.ended[0].completion_tokens == 3
        assert len(server.recorder.ended) == 1


async def test_an_engine_lost_mid_stream_is_told_and_billed_by_what_arrived(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.knobs.die_after = 3
        server.engine.knobs.token_delay_s = 0.01
        got = await ask(server.port, post(ASKED))
        assert got.status == 200
        *chunks, error = frames(got.body)
        assert error["error"]["code"] == "engine_lost"
        assert len(chunks) >= 2
        ended = server.recorder.ended[0]
        assert (ended.outcome, ended.completion_tokens) == (Outcome.ENGINE_LOST, 3)
        assert ended.prompt_tokens == len(server.last.tokens)


async def test_an_engine_that_fails_one_request_mid_stream_says_so(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.knobs.fail_after = 2
        *_, error = frames((await ask(server.port, post(ASKED))).body)
        assert error["error"]["code"] == "engine_failed"
        assert server.recorder.ended[0].outcome is Outcome.FAILED
        assert server.recorder.ended[0].completion_tokens == 2
        # Its status had gone out, so no alert on statuses would see it.
        await until(lambda: b"broken_answers_total 1.0" in server.metrics.text())


async def test_a_request_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.inference.call.GRACE_SECONDS", 0.1)
    async with serving(tmp_path, timeout_s=0.1) as server:
        server.engine.knobs.hang_after = 2
        *_, error = frames((await ask(server.port, post(ASKED))).body)
        assert error["error"]["code"] == "deadline_exceeded"
        assert server.recorder.ended[0].outcome is Outcome.DEADLINE
        assert server.engine.open == 0


async def test_a_refusal_is_plain_json_also_when_a_stream_was_asked_for(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.die()
        got = await ask(server.port, post({**ASKED, "temperature": 9}))
        assert got.status == 400
        assert got.headers["content-type"] == "application/json"


async def stalled(server, body):
    """A client that asks and reads nothing."""
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours.setblocking(False)
    await asyncio.get_running_loop().sock_connect(ours, ("127.0.0.1", server.port))
    await asyncio.get_running_loop().sock_sendall(ours, post(body))
    return ours


LARGE = {**ASKED, "max_tokens": 4000, "logprobs": True, "top_logprobs": 20}  # over 10 MB


async def test_a_client_that_reads_nothing_holds_the_engine_back_and_is_given_up(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("gateway.listener.STALL_SECONDS", 0.5)
    async with serving(tmp_path, context=4096) as server:
        server.engine.knobs.tokens_per_step = 16
        ours = await stalled(server, LARGE)
        try:
            await until(lambda: bool(server.recorder.ended), 10.0)
            assert server.recorder.ended[0].outcome is Outcome.CANCELLED
            assert server.engine.open == 0
        finally:
            ours.close()


async def test_a_long_silence_is_filled_with_comments(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.inference.stream.ALIVE_SECONDS", 0.05)
    async with serving(tmp_path) as server:
        server.say("Hello")
        server.engine.knobs.first_delay_s = 0.3
        got = await ask(server.port, post(ASKED))
        assert got.status == 200
        assert got.body.startswith(b": ping\n\n")
        pings = got.body.count(b": ping\n\n")
        assert 2 <= pings <= 10
        assert content(frames(got.body.replace(b": ping\n\n", b""))) == "Hello"


async def test_a_failure_after_a_comment_is_told_in_the_stream(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.inference.stream.ALIVE_SECONDS", 0.05)
    async with serving(tmp_path) as server:
        server.engine.knobs.first_delay_s, server.engine.knobs.die_after = 0.15, 0
        got = await ask(server.port, post(ASKED))
        (error,) = frames(got.body.replace(b": ping\n\n", b""))
        assert error["error"]["code"] == "engine_lost"


async def test_the_official_client_skips_the_comments(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.inference.stream.ALIVE_SECONDS", 0.02)
    async with serving(tmp_path) as server:
        server.say("Hello there")
        server.engine.knobs.token_delay_s = 0.05
        asked = await server.client().chat.completions.create(**ASKED)
        texts = [chunk.choices[0].delta.content or "" async for chunk in asked]
        assert "".join(texts) == "Hello there"


async def test_bytes_may_be_cut_anywhere(tmp_path):
    async with serving(tmp_path) as server:
        server.say("é🙂")
        request = post({**ASKED, "messages": [{"role": "user", "content": "ü🙂"}]})
        whole = await raw(server.port, request)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for position in range(len(request)):
            writer.write(request[position : position + 1])
            await writer.drain()
            if position % 16 == 0:
                await asyncio.sleep(0)
        cut = await reader.read()
        assert whole.count(b"data: ") == cut.count(b"data: ")
        assert server.engine.submitted[0].tokens == server.engine.submitted[1].tokens
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_choice_that_a_stop_string_ended_is_stopped_at_the_engine_alone(tmp_path, stream):
    async with serving(tmp_path) as server:
        letters = [server.tokenizer.encode(letter, add_special=False)[0] for letter in "abXc"]
        long = letters[:1] * 40
        server.engine.knobs.choices = [long, [*letters, *long], long]
        server.engine.knobs.token_delay_s = 0.005
        body = {**ASKED, "n": 3, "stop": "X", "max_tokens": 40, "stream": stream}
        got = await ask(server.port, post(body))
        assert got.status == 200
        cancelled = [heard for heard in server.engine.heard if isinstance(heard, Cancel)]
        assert cancelled == [Cancel(server.last.request, [1])]
        (ended,) = server.recorder.ended
        assert ended.outcome is Outcome.COMPLETED
        assert ended.completion_tokens == 40 + 3 + 40
        assert server.engine.record[server.last.request].completion_tokens < 40 + 20 + 40
        if not stream:
            texts = [choice["message"]["content"] for choice in got.json["choices"]]
            assert texts == ["a" * 40, "ab", "a" * 40]


async def test_a_long_stream_that_comes_token_by_token_is_whole(tmp_path):
    async with serving(tmp_path) as server:
        text = "häßlich 中文 🙂 " * 12
        server.say(text)
        server.engine.knobs.token_delay_s = 0.001
        asked = {**ASKED, "stream_options": {"include_usage": True}}
        *chunks, last = frames((await ask(server.port, post(asked))).body)
        assert content(chunks) == text
        tokens = server.tokenizer.encode(text, add_special=False)
        assert last["usage"]["completion_tokens"] == len(tokens) + 1  # the one that ends it
