"""A client for benchmarks: streamed completions over plain asyncio, one connection a request.

Prompts are token ids, so that no tokeniser stands between; greedy; ``ignore_eos``, so that every
request gets exactly the tokens it asks for. Anything else is a failure, never a figure. No HTTP
library: what the client takes from the processor is not the server's.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class BenchFailed(RuntimeError):
    """The server did not answer as the benchmark needs."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    api_key: str


@dataclass(frozen=True, slots=True)
class Served:
    base_url: str
    base: Model
    adapters: list[Model]

    @classmethod
    def read(cls, path: Path) -> "Served":
        """From the file that ``loratorio serve --ready-file`` writes."""
        ready = json.loads(path.read_text())
        tenants = ready["tenants"]
        adapters = [
            Model(name, tenant["api_key"])
            for tenant in tenants
            for name in tenant["models"]
            if name != ready["base_model"]
        ]
        base = Model(ready["base_model"], tenants[0]["api_key"])
        return cls(ready["base_url"], base, adapters)


@dataclass(frozen=True, slots=True)
class Stream:
    tokens: int
    first_s: float  # from sending to the first token
    total_s: float


async def stream(base_url: str, model: Model, prompt: Sequence[int], tokens: int) -> Stream:
    """One streamed completion. Raises BenchFailed, or OSError when the connection fails."""
    body = {
        "model": model.name,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first: float | None = None
    usage: dict[str, int] | None = None
    async for event in post(base_url, "/completions", model.api_key, body):
        if "error" in event:
            raise BenchFailed(f"{model.name}: {event['error']}")
        if first is None and event.get("choices"):
            first = time.perf_counter() - began
        usage = event.get("usage") or usage
    total = time.perf_counter() - began
    if first is None or usage is None or usage["completion_tokens"] != tokens:
        raise BenchFailed(f"{model.name}: asked for {tokens} tokens, answered {usage}")
    if usage["prompt_tokens"] != len(prompt):
        raise BenchFailed(f"{model.name}: sent {len(prompt)} tokens, counted {usage}")
    return Stream(tokens, first, total)


async def post(
    base_url: str, path: str, api_key: str, body: dict[str, object]
) -> AsyncIterator[dict[str, Any]]:
    """The events of a server-sent stream, one connection a request."""
    url, data = urlsplit(base_url), json.dumps(body).encode()
    secure = url.scheme == "https"
    port = url.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=secure or None)
    head = (
        f"POST {url.path}{path} HTTP/1.1\r\nHost: {url.netloc}\r\n"
        f"Authorization: Bearer {api_key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + data)
    try:
        status = (await reader.readline()).decode().strip()
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        if " 200 " not in f"{status} ":
            raise BenchFailed(f"{status}: {(await reader.read(2000)).decode(errors='replace')}")
        chunked = b"transfer-encoding: chunked" in headers
        async for line in lines(reader, chunked=chunked):
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield json.loads(line[6:])
    except (EOFError, ValueError) as error:
        raise BenchFailed(f"the answer broke off or is no HTTP: {error}") from error
    finally:
        writer.close()


async def lines(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """The lines of a response body, without their ends."""
    pending = b""
    while True:
        size = int(await reader.readline(), 16) if chunked else 1 << 16
        data = await (reader.readexactly(size + 2) if chunked else reader.read(size))
        data = data[:size]
        if not data:
            return
        *whole, pending = (pending + data).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
