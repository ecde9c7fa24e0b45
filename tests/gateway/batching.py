"""Files and batches with all that is behind them, in front of a fake engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI
from openai.types import Batch
from sqlalchemy import text

from gateway.batches.composition import Batches
from gateway.config import Settings
from gateway.db import Database
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.health import Health
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.inference.calling import CallSupport
from gateway.inference.gate import Gate
from gateway.inference.grammars import GrammarCheck
from gateway.inference.intake import Intake
from gateway.inference.prompt import Prompts
from gateway.inference.services import Services
from gateway.inference.template import ChatTemplate
from gateway.inference.tokenizer import Tokenizer
from gateway.limits.limiter import memory_limiter
from gateway.metrics import Metrics
from gateway.refusals.tally import Tally
from gateway.rest import rest_application
from gateway.snapshot import LiveSnapshot
from gateway.spending import LedgerSpending
from gateway.usage.service import PriceList
from tests.fakes.clock import until
from tests.fakes.engine import FakeEngine, Knobs
from tests.gateway.serving import BASE, FakeRecorder, build_model_dir, parrot

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
PRICES = {"default": ("2", "1", "4"), "batch": ("1", "0.5", "2")}  # dollars per million tokens


@dataclass
class Clock:
    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass
class Desk:
    app: Any
    database: Database
    engine: FakeEngine
    live: LiveSnapshot
    keys: dict[str, str]
    clock: Clock
    settings: Settings
    peppers: Peppers
    refusals: Tally

    def client(self, who: str = "acme") -> AsyncOpenAI:
        transport = httpx2.ASGITransport(self.app)
        http = httpx2.AsyncClient(transport=transport, base_url="http://gateway")
        return AsyncOpenAI(base_url="http://gateway/v1", api_key=self.keys[who],
                           http_client=http, max_retries=0)  # fmt: skip

    async def send(self, lines: Sequence[Any] | bytes, who: str = "acme", **more: Any) -> Batch:
        """A batch of these lines: objects, or what is to be the file."""
        data = lines if isinstance(lines, bytes) else "\n".join(map(json.dumps, lines)).encode()
        client = self.client(who)
        sent = await client.files.create(file=("in.jsonl", data), purpose="batch")
        return await client.batches.create(
            input_file_id=sent.id, completion_window="24h", **{"endpoint": CHAT} | more
        )

    async def end_of(self, batch: Batch, who: str = "acme") -> Batch:
        async with asyncio.timeout(20):
            while (batch := await self.client(who).batches.retrieve(batch.id)).status not in ENDED:
                await asyncio.sleep(0.02)
        return batch

    async def lines(self, file: str | None, who: str = "acme") -> list[dict[str, Any]]:
        if file is None:
            return []
        content = await self.client(who).files.content(file)
        return [json.loads(line) for line in content.text.splitlines()]

    async def events(self) -> list[dict[str, Any]]:
        async with self.database.reading() as session:
            rows = await session.execute(text("SELECT * FROM usage_event ORDER BY id"))
            return [dict(row._mapping) for row in rows]


def line(number: int, **body: Any) -> dict[str, Any]:
    asked = {"model": BASE, "messages": [{"role": "user", "content": f"Hello {number}"}],
             "max_tokens": 4}  # fmt: skip
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": asked | body}


@asynccontextmanager
async def batching(
    database: Database,
    root: Path,
    *,
    terms: KeyTerms = KeyTerms(),  # noqa: B008
    budget: Callable[[Any], None] | None = None,
    running: bool = True,
    **settings: Any,
) -> AsyncIterator[Desk]:
    chosen = Settings(
        data_dir=root / "data", model_dir=build_model_dir(root / "model"), served_model_name=BASE,
        engines=(f"unix:{root}/e.sock",), max_body_bytes=1 << 16, **settings,
    )  # fmt: skip
    peppers = Peppers.load(None, root / "pepper")
    keys = {}
    async with database.publish() as session:
        service = IdentityService(session, datetime.now(UTC))
        for name in ("acme", "globex"):
            project = await service.create_project(name)
            keys[name] = service.issue(project, terms, peppers=peppers).text
        owner = await service.organisation("default")
        keys["admin"] = service.issue_admin(owner, KeyTerms(), peppers=peppers).text
        since = datetime.now(UTC) - timedelta(days=1)
        for tier, prices in PRICES.items():
            PriceList(session, since).set(BASE, prices, tier=tier)
    live = LiveSnapshot(database, peppers, base_model=BASE)
    await live.refresh()
    engine = FakeEngine(chosen.engines[0], max_model_len=512, knobs=Knobs(script=parrot))
    fleet = Fleet(Static(chosen.engines), gateway="test")
    tokenizer = Tokenizer.load(chosen.model_dir)
    limiter = memory_limiter(rules=live.rules, spending=LedgerSpending(database, NoLog()))
    services = Services(
        gate=Gate(live, open_to_this_machine=False), limiter=limiter, recorder=FakeRecorder(),
        fleet=fleet, tokenizer=tokenizer, metrics=Metrics(), max_body_bytes=chosen.max_body_bytes,
        max_inflight=64, tariff=live.tariff,
    )  # fmt: skip
    threads = ThreadPoolExecutor(1)
    prompts = Prompts(tokenizer, ChatTemplate.load(chosen.model_dir, tokenizer.named_tokens),
                      threads)  # fmt: skip
    grammars = GrammarCheck()
    intake = Intake(
        live, prompts, fleet, grammars=grammars, calls=CallSupport(None), deadline_ms=30_000
    )
    clock = Clock()
    batches = Batches(chosen, database, services, intake, live, owner="log_a", clock=clock)
    app = rest_application(Health(fleet, lambda: 0.0), base_model=BASE, is_open=False,
                           routers=batches.routers)  # fmt: skip
    async with engine:
        work = {"fleet": fleet.run(), **(batches.tasks() if running else {})}
        tasks = [asyncio.create_task(coroutine) for coroutine in work.values()]
        try:
            await until(lambda: len(fleet.ready) == 1)
            yield Desk(app, database, engine, live, keys, clock, chosen, peppers, services.refusals)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            threads.shutdown()
            grammars.close()


class NoLog:
    """The usage log of a gateway that has no live requests."""

    orphans = ()

    async def settle(self) -> int:
        return 0
