"""Servers to compare with: a bare ASGI echo, and a plain FastAPI handler.

    python -m bench.gateway.peers asgi|fastapi PORT

Both run on the gateway's own listener. ``POST /`` answers the body, ``POST /stream/N`` N events of
about the size of the gateway's, each written by itself, after a turn of the loop.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from gateway.http import Asgi, Receive, Scope, Send
from gateway.listener import Listener

EVENT = (
    b"data: " + b'{"id":"chatcmpl-0","object":"chat.completion.chunk","choices":[]}' * 3 + b"\n\n"
)
JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream")


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    count = int(scope["path"].rpartition("/")[2] or 0)
    if not count:
        headers = [JSON, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [EVENTS]})
    for _ in range(count):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class Message(BaseModel):
    role: str
    content: str


class Chat(BaseModel):
    model: str
    messages: list[Message]
    max_tokens: int
    stream: bool


def plain() -> FastAPI:
    application = FastAPI(openapi_url=None)

    @application.post("/")
    async def echo(chat: Chat) -> Chat:
        return chat

    @application.post("/stream/{count}")
    async def stream(count: int, chat: Chat) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            for _ in range(count):
                yield EVENT
                await asyncio.sleep(0)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return application


def main(kind: str, port: str) -> None:
    application: Asgi | Any = bare if kind == "asgi" else plain()
    uvloop.run(Listener(application, "127.0.0.1", int(port)).run_until_stopped())


if __name__ == "__main__":
    main(*sys.argv[1:])
