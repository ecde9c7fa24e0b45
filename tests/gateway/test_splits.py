"""Bytes may be cut anywhere, on the way in and on the way out: nothing is lost, nothing changes."""

import asyncio
import json

from openai import AsyncOpenAI
from openai._streaming import SSEDecoder

from tests.gateway.serving import BASE, KEY, ask, post, serving

ASKED = {"model": BASE, "messages": [{"role": "user", "content": "ü🙂 中文"}], "max_tokens": 40}
ANSWER = "Grüße 🙂🚀 中文"


async def answered(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if b"content-length" in line.lower()
    )
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def test_a_request_in_two_pieces_cut_at_every_byte(tmp_path):
    async with serving(tmp_path) as server:
        server.say(ANSWER)
        request = post({**ASKED, "max_tokens": 30}).replace(b"connection: close\r\n", b"")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for position in range(1, len(request)):
            writer.write(request[:position])
            await asyncio.sleep(0.0005)  # the server reads it before the rest is there
            writer.write(request[position:])
            status, answer = await answered(reader)
            assert (status, answer["choices"][0]["message"]["content"]) == (200, ANSWER), position
        assert len({tuple(submit.tokens) for submit in server.engine.submitted}) == 1
        writer.close()


async def test_a_stream_in_two_pieces_cut_at_every_byte(tmp_path):
    async with serving(tmp_path) as server:
        server.say(ANSWER)
        got = await ask(server.port, post({**ASKED, "stream": True, "logprobs": True}))
        whole = [event.data for event in SSEDecoder().iter_bytes(iter([got.body]))]
        assert whole[-1] == "[DONE]"
        for position in range(1, len(got.body)):
            pieces = iter([got.body[:position], got.body[position:]])
            assert [event.data for event in SSEDecoder().iter_bytes(pieces)] == whole, position


async def trickle(reader, writer):
    while piece := await reader.read(4096):
        for position in range(len(piece)):
            writer.write(piece[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0)
    writer.close()


async def test_the_official_client_through_a_wire_that_carries_single_bytes(tmp_path):
    async with serving(tmp_path) as server:
        server.say(ANSWER)

        async def between(reader, writer):
            ours, theirs = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(trickle(reader, theirs), trickle(ours, writer))

        wire = await asyncio.start_server(between, "127.0.0.1", 0)
        port = wire.sockets[0].getsockname()[1]
        address = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
            whole = await client.chat.completions.create(**ASKED)
            assert whole.choices[0].message.content == ANSWER
            stream = await client.chat.completions.create(**ASKED, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(pieces) == ANSWER
        wire.close()
