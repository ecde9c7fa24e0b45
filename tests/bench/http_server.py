"""A server of streamed completions that answers as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


def answer(body: dict[str, object], *, tokens: int | None = None) -> list[dict[str, object]]:
    count = body["max_tokens"] if tokens is None else tokens
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
    return [{"choices": [{"text": "é"}]}] * count + [{"choices": [], "usage": usage}]


@asynccontextmanager
async def server(
    reply: Callable[[dict[str, object]], list[dict[str, object]]] = answer,
    *,
    status: str = "200 OK",
    chunk: int = 7,
) -> AsyncIterator[str]:
    """Answers every request with events cut into chunks of ``chunk`` bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        events = reply(json.loads(await reader.readexactly(length)))
        text = "".join(f"data: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events)
        data = (text + "data: [DONE]\n\n").encode()
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for start in range(0, len(data), chunk):
            piece = data[start : start + chunk]
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
