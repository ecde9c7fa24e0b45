"""Sends what is to be told, until it is taken: at least once, at growing intervals.

The address is the operator's, never a tenant's: nobody can make this server ask another one. An
attempt is written down before it is made, so gateways take turns, and one that dies leaves the
next attempt to another.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx2

from gateway.alerts.message import headers_of
from gateway.alerts.watch import SpendWatch
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.limits.models import AlertDelivery
from gateway.limits.repository import LimitRepository

log = logging.getLogger(__name__)

LOOK_S = 10.0
ATTEMPT_S = 10.0  # the longest wait for an answer
FIRST_WAIT_S = 5.0  # after the first failure; then twice as long each time
LONGEST_WAIT_S = 3600.0
MOST_ATTEMPTS = 60  # about two days
BATCH = 50


def wait_after(attempts: int) -> timedelta:
    """``attempts`` that failed so far."""
    return timedelta(seconds=min(FIRST_WAIT_S * 2 ** (attempts - 1), LONGEST_WAIT_S))


class Outbox:
    """Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        url: str,
        secret: bytes,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        look_s: float = LOOK_S,
    ) -> None:
        self._database = database
        self._url = url
        self._secret = secret
        self._now = now
        self._look_s = look_s
        self._watch = SpendWatch(database, now)

    async def run(self) -> None:
        """For ever; while the database is away everything waits."""
        async with httpx2.AsyncClient(
            timeout=ATTEMPT_S, follow_redirects=False, trust_env=False
        ) as client:
            while True:
                try:
                    await self._watch.look()
                    await self.send(client)
                except (DatabaseUnavailable, Conflict) as error:
                    log.info("spend alerts wait: %s", error)
                await asyncio.sleep(self._look_s)

    async def send(self, client: httpx2.AsyncClient) -> int:
        """All that is due. Returns how many were taken."""
        done = 0
        for delivery in await self._claim():
            if await self._attempt(client, delivery):
                async with self._database.unit_of_work() as session:
                    await LimitRepository(session).delivered(delivery.id, self._now())
                done += 1
        return done

    async def _claim(self) -> list[AlertDelivery]:
        """Each is ours until its next attempt is due."""
        now = self._now()
        async with self._database.unit_of_work() as session:
            rows = LimitRepository(session)
            return [
                delivery
                for delivery in await rows.due(now, BATCH, attempts=MOST_ATTEMPTS)
                if await rows.attempt(
                    delivery.id, delivery.attempts, now + wait_after(delivery.attempts + 1)
                )
            ]

    async def _attempt(self, client: httpx2.AsyncClient, delivery: AlertDelivery) -> bool:
        headers = headers_of(delivery, self._secret, int(time.time()))
        try:
            answer = await client.post(self._url, content=delivery.body.encode(), headers=headers)
        except httpx2.HTTPError as error:
            said = type(error).__name__
        else:
            if answer.is_success:
                return True
            said = str(answer.status_code)
        last = delivery.attempts + 1 >= MOST_ATTEMPTS
        log.log(
            logging.ERROR if last else logging.WARNING,
            "spend alert %s was not taken (%s), attempt %d%s",
            delivery.alert_id, said, delivery.attempts + 1, ": given up" if last else "",
        )  # fmt: skip
        return False
