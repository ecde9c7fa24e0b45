"""Brings the ledger to a billing system: each event once, whatever dies on the way.

What is to be told is written down first, with its id, and never computed again. It is sent until
the sink has it, but only as long as the sink would know it again: what may have been taken and is
older than that is in doubt, and the sink is asked before it is sent anew.

An attempt is written down before it is made, so gateways take turns, and what one that died had
sent counts as possibly taken.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx2
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.billing.models import SinkDelivery
from gateway.billing.outbox_repository import OutboxRepository
from gateway.billing.sink import Amount, Meaning, Sink, Verdict
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.ids import new_id

log = logging.getLogger(__name__)

LOOK_S = 60.0
ATTEMPT_S = 10.0  # the longest wait for an answer
FIRST_WAIT = timedelta(seconds=5)  # after the first failure; then twice as long each time
LONGEST_WAIT = timedelta(hours=1)
ASK_AGAIN = timedelta(hours=1)  # of what is in doubt; sinks add up with a delay
BATCH = 100
AT_ONCE = 8  # requests to the sink

States = dict[str, tuple[int, int]]  # state -> deliveries, and what they add up to


class BillingOutbox:
    """Belongs to one event loop."""

    def __init__(
        self,
        database: Database,
        sink: Sink,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        watch: Callable[[str, States], None] = lambda sink, states: None,
    ) -> None:
        self._database = database
        self._sink = sink
        self._now = now
        self._watch = watch

    async def run(self) -> None:
        """For ever; while the database or the sink is away everything waits."""
        async with httpx2.AsyncClient(
            timeout=ATTEMPT_S, follow_redirects=False, trust_env=False
        ) as client:
            while True:
                try:
                    await self.round(client)
                except (DatabaseUnavailable, Conflict) as error:
                    log.info("sink %s waits: %s", self._sink.name, error)
                await asyncio.sleep(LOOK_S)

    async def round(self, client: httpx2.AsyncClient) -> None:
        await self.write_down()
        await self.release()
        while await self.send(client):
            pass
        await self.reconcile(client)
        async with self._database.reading() as session:
            self._watch(self._sink.name, await self._rows(session).counts())

    async def write_down(self) -> int:
        """All of the ledger that is in no delivery. Returns how many deliveries that makes."""
        async with self._database.unit_of_work() as session:
            rows, now = self._rows(session), self._now()
            if not await rows.take_turn():
                return 0
            customers = await rows.customers()
            made = 0
            for name, after, last in await rows.behind():
                for amount in self._sink.amounts(await rows.usage(name, after, last), now):
                    rows.add(self._delivery(amount, customers.get(amount.organisation_id), now))
                    made += 1
                await rows.move(name, last)
            return made

    async def release(self) -> int:
        """What was held until somebody said what its organisation is called there."""
        done = 0
        async with self._database.unit_of_work() as session:
            rows = self._rows(session)
            customers = await rows.customers()
            for row in await rows.held(BATCH):
                customer = customers[row.organisation_id]
                payload = self._sink.payload(row.id, _amount(row), customer)
                done += await rows.change(
                    row, state="pending", customer=customer, payload=payload, next_at=self._now()
                )
        return done

    async def send(self, client: httpx2.AsyncClient) -> int:
        """A batch of what is due. Returns how many were taken."""
        claimed = await self._claim()
        turns = asyncio.Semaphore(AT_ONCE)

        async def attempt(delivery: SinkDelivery) -> bool:
            async with turns:
                verdict = await self._sink.send(client, delivery)
            return await self._settle(delivery, verdict)

        return sum(await asyncio.gather(*map(attempt, claimed)))

    async def reconcile(self, client: httpx2.AsyncClient) -> None:
        """Ask the sink about what is in doubt: what it has not is sent again."""
        now = self._now()
        async with self._database.reading() as session:
            doubtful = await self._rows(session).due("uncertain", now, BATCH)
        for delivery in doubtful:
            async with self._database.reading() as session:
                beside = await self._rows(session).beside(delivery)
            try:
                counted = await self._sink.counted(client, delivery, beside)
                detail = "" if counted is not None else "its sums say neither"
            except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
                counted, detail = None, f"cannot be asked: {type(error).__name__}"
            async with self._database.unit_of_work() as session:
                rows = self._rows(session)
                match counted:
                    case True:
                        await rows.change(delivery, state="taken", taken_at=now, detail="asked")
                    case False:
                        await rows.change(delivery, state="pending", doubt_since=None, next_at=now)
                    case None:
                        await rows.change(delivery, next_at=now + ASK_AGAIN, detail=detail)

    async def _claim(self) -> list[SinkDelivery]:
        """Each is ours until its next attempt is due; from now on it may have been taken."""
        now, claimed = self._now(), []
        async with self._database.unit_of_work() as session:
            rows = self._rows(session)
            for row in await rows.due("pending", now, BATCH):
                if row.doubt_since is not None and now - row.doubt_since > self._sink.window:
                    await rows.change(row, state="uncertain", next_at=now)
                    log.error("sink %s: %s may have been taken: asking", self._sink.name, row.id)
                elif await rows.change(
                    row,
                    attempts=row.attempts + 1,
                    doubt_since=row.doubt_since or now,
                    next_at=now + wait_after(row.attempts + 1),
                ):
                    claimed.append(row)  # as it was before: what its verdict is held against
        return claimed

    async def _settle(self, before: SinkDelivery, verdict: Verdict) -> bool:
        """What the attempt came to. A crash before this leaves it in doubt."""
        now = self._now()
        values: dict[str, object] = {"detail": verdict.detail[:200]}
        match verdict.meaning:
            case Meaning.TAKEN:
                values |= {"state": "taken", "taken_at": now}
            case Meaning.REFUSED:
                # An earlier attempt may have been taken all the same.
                doubt = before.doubt_since is not None
                values |= {"state": "uncertain" if doubt else "refused", "next_at": now}
                log.error("sink %s refuses %s: %s", self._sink.name, before.id, verdict.detail)
            case Meaning.LATER:
                values |= {"doubt_since": before.doubt_since}
        if verdict.wait is not None:
            values["next_at"] = now + max(verdict.wait, FIRST_WAIT)
        async with self._database.unit_of_work() as session:
            await self._rows(session).settle(before.id, before.attempts + 1, values)
        return verdict.meaning is Meaning.TAKEN

    def _delivery(self, amount: Amount, customer: str | None, now: datetime) -> SinkDelivery:
        name = new_id("use")
        held = customer is None and self._sink.needs_customer
        return SinkDelivery(
            id=name,
            sink=self._sink.name,
            organisation_id=amount.organisation_id,
            meter=amount.meter,
            at=amount.at,
            quantity=amount.quantity,
            data=amount.data,
            customer=customer or "",
            payload="" if held else self._sink.payload(name, amount, customer or ""),
            state="held" if held else "pending",
            attempts=0,
            doubt_since=None,
            next_at=now,
            taken_at=None,
            detail="",
        )

    def _rows(self, session: AsyncSession) -> OutboxRepository:
        return OutboxRepository(session, self._sink.name)


def wait_after(attempts: int) -> timedelta:
    """``attempts`` made so far."""
    doubled: int = 2 ** min(attempts - 1, 20)
    return min(FIRST_WAIT * doubled, LONGEST_WAIT)


def _amount(row: SinkDelivery) -> Amount:
    return Amount(
        organisation_id=row.organisation_id,
        meter=row.meter,
        at=row.at,
        quantity=row.quantity,
        data=row.data,
    )
