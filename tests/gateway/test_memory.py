"""Whatever requests leave behind in a gateway ends: it holds no more after twice as many.

What is counted are the objects that can be reached from what serves, however plain they are. So a
request that leaves one thing behind shows as a request each. What the ledger and batches hold is
seen by the soak alone (``make soak-gateway``).
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from bench.gateway.pump import Ask, Pump
from gateway.idempotency import answers as kept
from gateway.limits import rules
from gateway.limits.memory import MemoryStore
from gateway.limits.rules import Rates
from tests.fakes.clock import until
from tests.gateway.quotas import book, limiter_of
from tests.gateway.serving import BASE, KEY, LIMITED_KEY, Server, serving
from tests.reachable import reachable

MANY = 100
PLENTY = Rates(requests_per_minute=10**6, tokens_per_day=10**9, concurrency=1000)
FEW = Rates(requests_per_minute=1)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(kept, "MOST_ANSWERS", 20)
    monkeypatch.setattr(rules, "MOST_KNOWN", 20)
    limits = book({("project", "prj_acme"): PLENTY, ("project", "prj_limited"): FEW})
    async with serving(tmp_path, limiter=limiter_of(MemoryStore(), limits)) as server:
        yield server


def chat(number: int, key: str = KEY, *, head: str = "", status: int = 200, **more: object) -> Ask:
    body = {
        "model": BASE, "max_tokens": 2,
        "messages": [{"role": "user", "content": f"{number} Hello"}], **more,
    }  # fmt: skip
    return post(orjson.dumps(body), key, head=head, status=status, leaves=bool(more.get("stream")))


def post(body: bytes, key: str = KEY, *, head: str = "", status: int, leaves: bool = False) -> Ask:
    lines = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{head}\r\n"
    )
    return Ask(lines.encode() + body, (status,), leaves=leaves)


async def held_after(server: Server, ask: Callable[[int], Ask], numbers: range) -> int:
    await Pump([server.port], map(ask, numbers)).run(4)
    await until(lambda: server.metrics.inflight.total == 0)
    server.recorder.records.clear()  # the fake keeps them
    return reachable(server.routes, server.metrics)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(chat, id="whole answers"),
        pytest.param(lambda n: chat(n, stream=True, max_tokens=40), id="clients that leave"),
        pytest.param(lambda n: chat(n, user=f"customer {n}"), id="customers"),
        pytest.param(lambda n: chat(n, head=f"idempotency-key: {n}\r\n"), id="idempotency keys"),
        pytest.param(lambda n: chat(n, model=f"m{n}", status=404), id="unknown models"),
        pytest.param(lambda n: chat(n, f"sk-{n}", status=401), id="unknown keys"),
        pytest.param(lambda n: post(b'{"model": %d' % n, status=400), id="broken bodies"),
        pytest.param(lambda n: chat(n, LIMITED_KEY, status=429), id="refused for their rate"),
    ],
)
async def test_requests_of_each_kind_leave_nothing(server, ask):
    if ask(0).statuses == (429,):
        await Pump([server.port], iter([chat(0, LIMITED_KEY)])).run(1)
    first = await held_after(server, ask, range(MANY))
    then = await held_after(server, ask, range(MANY, 2 * MANY))
    assert then - first < MANY / 2
