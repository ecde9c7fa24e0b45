"""A retired adapter: what runs on it has until its deadline, and engines give it back after."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engine.protocol import AdapterRef, Retire
from gateway.adapter_api.residents import Residents
from gateway.usage.record import Outcome
from tests.fakes.clock import until
from tests.gateway.serving import Server, ask, post, serving

DIGEST = "d" * 64  # of "support"


@dataclass
class Wanted:
    pinned: list[tuple[str, AdapterRef]] = field(default_factory=list)
    digests: set[str] = field(default_factory=lambda: {DIGEST})
    ends: dict[str, float] = field(default_factory=dict)

    def retire(self, grace_s: float) -> None:
        self.digests.clear()
        self.ends["adp_support"] = time.time() + grace_s


@asynccontextmanager
async def retiring(folder: Path) -> AsyncIterator[tuple[Server, Wanted]]:
    wanted = Wanted()
    made: list[Residents] = []

    def make(fleet):
        made.append(Residents(fleet, wanted))
        return made[0]

    async with serving(folder, residents=make) as server:
        keeping = asyncio.create_task(made[0].keep())
        server.engine.knobs.token_delay_s = 0.02
        yield server, wanted
        keeping.cancel()


def asked(tokens: int, *, stream: bool, model: str = "support") -> bytes:
    messages = [{"role": "user", "content": "Hello"}]
    return post({"model": model, "messages": messages, "stream": stream, "max_tokens": tokens})


async def test_what_ends_in_time_is_not_touched(tmp_path):
    async with retiring(tmp_path) as (server, wanted):
        asking = asyncio.create_task(ask(server.port, asked(10, stream=False)))
        await until(lambda: server.engine.open == 1)
        wanted.retire(grace_s=10)
        assert (await asking).status == 200
        assert server.recorder.ended[0].outcome is Outcome.COMPLETED


async def test_what_takes_longer_ends_with_a_clear_error(tmp_path):
    async with retiring(tmp_path) as (server, wanted):
        asking = asyncio.create_task(ask(server.port, asked(400, stream=False)))
        base = asyncio.create_task(ask(server.port, asked(40, stream=False, model="tiny")))
        await until(lambda: server.engine.open == 2)
        wanted.retire(grace_s=0.2)
        answer = await asking
        assert (answer.status, answer.json["error"]["code"]) == (410, "adapter_retired")
        assert "'support' was retired" in answer.json["error"]["message"]
        ended = server.recorder.ended[0]
        assert ended.outcome is Outcome.DEADLINE
        assert 0 < ended.completion_tokens < 400  # counted by the engine
        assert (await base).status == 200  # nobody else is touched


async def test_a_stream_says_so_in_its_last_event_and_is_no_failure_of_ours(tmp_path):
    async with retiring(tmp_path) as (server, wanted):
        asking = asyncio.create_task(ask(server.port, asked(400, stream=True)))
        await until(lambda: server.engine.open == 1)
        wanted.retire(grace_s=0.2)
        answer = await asking
        last = [line for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")][-1]
        assert json.loads(last[6:])["error"]["code"] == "adapter_retired"
        assert b"broken_answers_total 0.0" in server.metrics.text()


async def test_a_request_that_comes_too_late_ends_at_once(tmp_path):
    async with retiring(tmp_path) as (server, wanted):
        wanted.retire(grace_s=-1)
        answer = await ask(server.port, asked(400, stream=False))
        assert answer.json["error"]["code"] == "adapter_retired"


async def test_engines_give_back_what_no_version_names_once_it_is_not_used(tmp_path):
    async with retiring(tmp_path) as (server, wanted):
        server.engine.resident = [DIGEST, "f" * 64]
        server.engine.push_load()
        await until(lambda: server.engine.resident == [DIGEST])  # the other is nobody's
        asking = asyncio.create_task(ask(server.port, asked(30, stream=False)))
        await until(lambda: server.engine.open == 1)
        wanted.retire(grace_s=10)
        await until(lambda: Retire(DIGEST) in server.engine.heard)
        assert server.engine.resident == [DIGEST]
        assert (await asking).status == 200
        await until(lambda: server.engine.resident == [])
