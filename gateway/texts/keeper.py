"""Brings texts to the database beside the requests, and deletes them when they have had their time.

Keeping text is a convenience and no part of the books: what does not fit into memory while the
database is away is dropped, and counted in the log. A project that wants none kept any more has
none written either, though its request began before. Nothing here ever logs a text.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.column_text import column_text
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.texts.exchange import Exchange
from gateway.texts.repository import KeepingRepository

FLUSH_S = 0.5
SWEEP_S = 60.0
AT_ONCE = 200
MOST_WAITING = 2_000
MOST_TOKENS = 4_000_000  # of all that wait
MOST_TEXT = 256 << 10  # characters of a prompt, or an answer
CUT = " […]"
TextOf = Callable[[str, Sequence[int]], str]  # of a base's tokens

log = logging.getLogger(__name__)


class TextKeeper:
    """Belongs to one event loop."""

    def __init__(self, database: Database, text_of: TextOf, *, sweep_s: float = SWEEP_S) -> None:
        self._database, self._text_of, self._sweep_s = database, text_of, sweep_s
        self._waiting: list[Exchange] = []
        self._tokens = 0
        self._dropped = 0

    def keep(self, exchange: Exchange) -> None:
        """Returns at once."""
        tokens = sum(map(len, exchange.prompts))
        if len(self._waiting) >= MOST_WAITING or self._tokens + tokens > MOST_TOKENS:
            self._dropped += 1
            return
        self._waiting.append(exchange)
        self._tokens += tokens

    async def run(self) -> None:
        """For ever."""
        swept = float("-inf")
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self.flush()
                if clock() - swept >= self._sweep_s:
                    while await self.sweep() == AT_ONCE:
                        pass
                    swept = clock()
            except (DatabaseUnavailable, Conflict) as error:
                log.warning("no text was kept or deleted: %s", error)
            await asyncio.sleep(FLUSH_S)

    async def flush(self) -> None:
        """What waits is in the database, or waits again if that raises."""
        if self._dropped:
            log.warning("%d texts were not kept: too many waited", self._dropped)
            self._dropped = 0
        while self._waiting:
            some = self._waiting[:AT_ONCE]
            rows = await asyncio.to_thread(lambda: [self._row(each) for each in some])  # noqa: B023
            async with self._database.unit_of_work() as session:
                keeping = KeepingRepository(session)
                wanted = await keeping.days({row["project_id"] for row in rows})
                kept = [
                    row | {"expires_at": row["ended_at"] + timedelta(days=days)}
                    for row in rows
                    if (days := wanted.get(row["project_id"]))
                ]
                if kept:
                    await keeping.add(kept)
            del self._waiting[: len(some)]
            self._tokens = sum(len(p) for each in self._waiting for p in each.prompts)

    async def sweep(self, now: datetime | None = None) -> int:
        async with self._database.unit_of_work() as session:
            return await KeepingRepository(session).forget_expired(
                now or datetime.now(UTC), AT_ONCE
            )

    def _row(self, exchange: Exchange) -> dict[str, Any]:
        prompts = [self._text_of(exchange.base, tokens) for tokens in exchange.prompts]
        return {
            "request_id": exchange.request,
            "organisation_id": exchange.organisation,
            "project_id": exchange.project,
            "user_id": exchange.customer[:256],
            "prompt": storable("\n\n".join(prompts)),
            "answer": storable("\n\n".join(exchange.answers)),
            "ended_at": exchange.ended_at,
        }


def storable(text: str) -> str:
    """As a column takes it, and not endless."""
    safe = column_text(text)
    return safe if len(safe) <= MOST_TEXT else safe[:MOST_TEXT] + CUT
