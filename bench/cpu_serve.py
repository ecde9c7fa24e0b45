"""A running server over HTTP: speed of one stream, and of eight that mix base and adapters.

    loratorio serve --demo --ready-file ready.json &
    python -m bench.cpu_serve --ready ready.json

Streams ask ``/v1/completions`` for a fixed number of greedy tokens after a prompt of 50 tokens
that no other request shares, so no cache helps. Tokens per second are the server's own count
over wall time from the first byte sent to the last byte received, prompts included. Figures of
Hugging Face stand beside ours when ``bench.hf_generate`` was run on the same device.

The client speaks HTTP over plain asyncio streams, to leave the processor to the server.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import cpu_rows
from engine.bench.rows import Row

PROMPT_TOKENS = 50
STREAMS = 8
PACKAGES = ("torch", "msgspec", "uvicorn")
TIMEOUT_S = 300.0


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


async def stream(base_url: str, model: Model, tokens: int) -> Stream:
    """One streamed completion. Raises BenchFailed."""
    body = {
        "model": model.name,
        "prompt": [random.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)],
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
    if usage["prompt_tokens"] != PROMPT_TOKENS:
        raise BenchFailed(f"{model.name}: sent {PROMPT_TOKENS} tokens, counted {usage}")
    return Stream(tokens, first, total)


async def post(
    base_url: str, path: str, api_key: str, body: dict[str, object]
) -> AsyncIterator[dict[str, Any]]:
    """The events of a server-sent stream, one connection a request."""
    url, data = urlsplit(base_url), json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
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


async def together(base_url: str, models: Sequence[Model], tokens: int) -> float:
    """Tokens per second over all streams."""
    began = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        streams = await asyncio.gather(*(stream(base_url, model, tokens) for model in models))
    return sum(each.tokens for each in streams) / (time.perf_counter() - began)


async def measure(served: Served, tokens: int, repeats: int) -> list[Row]:
    turn = [served.base, *served.adapters]
    mixed = [turn[index % len(turn)] for index in range(STREAMS)]
    for model in turn:
        await stream(served.base_url, model, 4)  # loads adapters, warms every path
    singles = [await stream(served.base_url, served.base, tokens) for _ in range(repeats)]
    adapted = [await stream(served.base_url, served.adapters[0], tokens) for _ in range(repeats)]
    base8 = [
        await together(served.base_url, [served.base] * STREAMS, tokens) for _ in range(repeats)
    ]
    mixed8 = [await together(served.base_url, mixed, tokens) for _ in range(repeats)]
    firsts = [(await stream(served.base_url, served.base, 1)).first_s for _ in range(9)]
    one = statistics.median(each.tokens / each.total_s for each in singles)
    with_adapter = statistics.median(each.tokens / each.total_s for each in adapted)
    gaps = [(each.total_s - each.first_s) / (each.tokens - 1) for each in singles]
    count = len(served.adapters)
    return [
        _row(served, 1, 0, "generated tokens", one, "tokens/s"),
        _row(served, 1, 1, "generated tokens", with_adapter, "tokens/s"),
        _row(served, 1, 0, "time to first token", 1000 * statistics.median(firsts), "ms"),
        _row(served, 1, 0, "time between tokens", 1000 * statistics.median(gaps), "ms"),
        _row(served, STREAMS, 0, "generated tokens", statistics.median(base8), "tokens/s"),
        _row(served, STREAMS, count, "generated tokens", statistics.median(mixed8), "tokens/s"),
    ]


def _row(served: Served, batch: int, adapters: int, metric: str, value: float, unit: str) -> Row:
    peer, peer_value = best_peer(cpu_rows.read("hf_generate"), batch, adapters, metric)
    return Row(
        bench="serve over HTTP",
        model=served.base.name,
        format="gptq 4-bit",
        rank=0,
        batch=batch,
        adapters=adapters,
        context=PROMPT_TOKENS,
        metric=metric,
        value=value,
        unit=unit,
        peer=peer,
        peer_value=peer_value,
    )


def best_peer(
    rows: Sequence[dict[str, object]], batch: int, adapters: int, metric: str
) -> tuple[str, float | None]:
    """Hugging Face's best figure for the same work on this very device, any dtype."""
    same = [
        row
        for row in rows
        if (row["batch"], row["adapters"], row["metric"]) == (batch, adapters, metric)
        and row["device"] == cpu_rows.device()
    ]
    if not same:
        return "", None
    choose = min if metric.startswith("time") else max
    best = choose(same, key=lambda row: float(str(row["value"])))
    return f"{best['bench']}, {best['format']}", float(str(best["value"]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_serve", description=__doc__)
    parser.add_argument("--ready", type=Path, required=True, help="the server's ready file")
    parser.add_argument("--tokens", type=int, default=64, help="generated by each stream")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    served = Served.read(options.ready)
    if not served.adapters:
        parser.error("the server offers no adapters")
    try:
        rows = asyncio.run(measure(served, options.tokens, options.repeats))
    except (BenchFailed, OSError, TimeoutError) as failure:
        print(failure, file=sys.stderr)
        return 1
    print(cpu_rows.table(rows))
    print(f"8 mixed streams to one stream: {rows[-1].value / rows[0].value:.2f} times")
    print(cpu_rows.write(rows, "cpu_serve", PACKAGES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
