"""Many tenants beside the stack's own one, and what their owners change while requests come."""

import asyncio
import io
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import orjson
from openai import AsyncOpenAI

from bench.gateway.load import LoadFailed
from bench.gateway.stack import BUDGET_NANO, RATES, Stack
from bench.gateway.traffic import Tenant
from engine.protocol import AdapterRef
from gateway.catalog.service import CatalogService
from gateway.db import Database
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.limits.models import Level
from gateway.limits.rules import Rates, Subject
from gateway.limits.service import LimitService
from gateway.usage.report import EVER, UsageReport
from tests.gateway.serving import BASE

ADAPTERS = 4
LIMITED = Rates(requests_per_minute=2)
BATCH_S = 300.0
ENDED = ("completed", "failed", "expired", "cancelled")
LINES = 50


class Tenants:
    """``async with``. Works on the database as an operator beside the running gateway would."""

    def __init__(self, served: Stack) -> None:
        self._served = served
        self._made = 0
        self._last_key = ""

    async def __aenter__(self) -> "Tenants":
        self._closing = AsyncExitStack()
        self._database = Database(self._served.settings.database)
        self._closing.push_async_callback(self._database.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def make(self, count: int) -> tuple[list[Tenant], Tenant]:
        """So many, each an organisation with adapters, and one that may ask twice a minute."""
        found = [await self._tenant(f"tenant-{number}") for number in range(count)]
        return found, await self._tenant("limited", rates=LIMITED)

    async def seen(self, who: Tenant) -> None:
        """Until every gateway knows it."""
        async with asyncio.timeout(BATCH_S):
            for port in self._served.ports:
                url = f"http://127.0.0.1:{port}/v1"
                async with AsyncOpenAI(api_key=who.key, base_url=url) as client:
                    while len([each async for each in client.models.list()]) <= ADAPTERS:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)

    async def change(self) -> None:
        """A key is replaced and an adapter gets its next version: the snapshot is made anew."""
        now, self._made = datetime.now(UTC), self._made + 1
        async with self._database.publish() as session:
            service = IdentityService(session, now)
            project = await service.project("tenant-0")
            key = service.issue(project, KeyTerms(), peppers=self._peppers())
            if self._last_key:
                await service.revoke(self._last_key)
            catalog = CatalogService(session, project.id, now)
            old = await catalog.ready("changing") if self._made > 1 else None
            await catalog.publish("changing", AdapterRef(f"{self._made:064x}", 8))
            if old is not None:
                await catalog.retire(f"changing@{old.version}", grace_s=0.0)
        self._last_key = key.id

    async def batch(self, who: Tenant) -> int:
        """Requests that a batch was answered; its files are deleted. Raises LoadFailed."""
        url = f"http://127.0.0.1:{self._served.port}/v1"
        async with AsyncOpenAI(api_key=who.key, base_url=url) as client:
            given = await client.files.create(file=("in.jsonl", _lines()), purpose="batch")
            batch = await client.batches.create(
                input_file_id=given.id, endpoint="/v1/chat/completions", completion_window="24h"
            )

            async with asyncio.timeout(BATCH_S):
                while batch.status not in ENDED:
                    await asyncio.sleep(0.2)
                    batch = await client.batches.retrieve(batch.id)
            if batch.request_counts is None or batch.request_counts.completed != LINES:
                raise LoadFailed(f"a batch ended with {batch.request_counts}")
            for file in (given.id, batch.output_file_id):
                if file:
                    await client.files.delete(file)
        return LINES

    async def in_ledger(self, tenants: Sequence[Tenant]) -> int:
        async with self._database.reading() as session:
            return sum(
                [
                    (await UsageReport(session, who.organisation).total(EVER)).requests
                    for who in tenants
                ]
            )

    async def _tenant(self, name: str, *, rates: Rates = RATES) -> Tenant:
        now = datetime.now(UTC)
        async with self._database.publish() as session:
            service = IdentityService(session, now)
            project = await service.create_project(name, organisation=name)
            key = service.issue(project, KeyTerms(), peppers=self._peppers())
            organisation = project.organisation.id
            limits = LimitService(session, organisation, now)
            await limits.set_rates(Subject(Level.PROJECT, project.id), rates)
            await limits.set_rates(Subject(Level.KEY, key.id), RATES)
            await limits.set_budget(Subject(Level.PROJECT, project.id), "month", BUDGET_NANO)
            catalog = CatalogService(session, project.id, now)
            names = [f"adapter-{number}" for number in range(ADAPTERS)]
            for number, each in enumerate(names):
                await catalog.publish(each, AdapterRef(f"{number:064x}", 8))
        return Tenant(organisation, key.text, (BASE, *names))

    def _peppers(self) -> Peppers:
        settings = self._served.settings
        return Peppers.load(settings.pepper, settings.pepper_file)


def _lines() -> io.BytesIO:
    line = {
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": BASE,
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "The quick brown fox"}],
        },
    }
    text = b"".join(orjson.dumps({"custom_id": str(n), **line}) + b"\n" for n in range(LINES))
    return io.BytesIO(text)
