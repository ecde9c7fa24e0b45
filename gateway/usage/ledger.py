"""From the usage log to the database: every request exactly once, in effect.

Events and the position in the log are written in one transaction, and an event that is there
already stays as it is, so a crash anywhere only means reading a little again. The stored
position is the Started of the oldest request still open: what lies behind it is settled. Each
transaction has a number within its log, which its events carry: see ``rollups.py``.

A Started of an earlier run without a Finished is an orphan: its gateway died. It is closed with
what the engine's own record says, or, where no engine knows it, as failed and free. Engines may
take a while to be reached after a start, so an orphan that nobody knows is asked for again first:
until all engines have said twice that they do not know it, or patience ends.
Whatever an earlier run left is told to ``inherited`` once it is in the database: what was reserved
for it is still held.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import date

from engine.protocol import Counts
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import Conflict
from gateway.usage.event import Event, event_of, time_of
from gateway.usage.log import Entry, Position, UsageLog
from gateway.usage.pace import Place, paces_of
from gateway.usage.pace_repository import PaceRepository
from gateway.usage.pricing import PriceBook
from gateway.usage.record import Finished, Outcome, Started
from gateway.usage.repository import LedgerRepository

log = logging.getLogger(__name__)

BATCH = 2000  # records read at a time
AT_ONCE = 32  # events made in one turn of the loop
LOOKUP_TIMEOUT_S = 10.0  # for one orphan
ASK_AGAIN_S = 2.0
FINISH_S = 5.0  # at the end of a run, for a database that does not take its usage
TRY_AGAIN_S = 0.2
PATIENCE_S = 60.0  # after the start; then what nobody knows is closed

# What an engine says a request did. None: nobody knows; without a boot: all say they do not.
Lookup = Callable[[str], Awaitable[Counts | None]]
Inherited = Callable[[Sequence[Event]], Awaitable[None]]


async def nobody_knows(request: str) -> Counts | None:
    """The lookup where no engine can be asked."""
    return None


async def nobody_asks(events: Sequence[Event]) -> None:
    """Where nothing is reserved."""


class Ledger:
    """Settles one log. Belongs to one event loop; one at a time for one log.

    ``live_from``: the first segment of the run that is writing; None when nobody is.
    """

    def __init__(
        self,
        usage_log: UsageLog,
        database: Database,
        *,
        live_from: int | None = None,
        lookup: Lookup = nobody_knows,
        inherited: Inherited = nobody_asks,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``patience_s`` defaults to PATIENCE_S where there is somebody to ask."""
        self._log = usage_log
        self._database = database
        self._live_from = live_from
        self._lookup = lookup
        self._inherited = inherited
        self._clock = clock
        if patience_s is None:
            patience_s = 0.0 if lookup is nobody_knows else PATIENCE_S
        self._patient_until = clock() + patience_s
        self._ask_at = 0.0  # not before then
        self._denied: set[str] = set()  # no engine knew them
        self._turn = asyncio.Lock()
        self._open: dict[str, Entry] = {}  # Started without Finished, in the order of the log
        self._cursor: Position | None = None  # read up to here
        self._prices: tuple[int, PriceBook] = (-1, PriceBook(()))  # how many they are made of
        self._partitions: set[date] = set()  # known to be there
        self.unpriced = 0  # events without a price, since the start; for the metrics

    @property
    def orphans(self) -> list[Started]:
        """Requests of an earlier run that are not accounted for yet."""
        return [
            entry.record
            for entry in self._open.values()
            if isinstance(entry.record, Started) and self._is_old(entry)
        ]

    def _is_old(self, entry: Entry) -> bool:
        return self._live_from is None or entry.start.segment < self._live_from

    async def settle(self) -> int:
        """Bring the database up to the end of the log. Returns how many records were read."""
        total = 0
        async with self._turn:
            while read := await self._settle_batch():
                total += read
            await self._close_orphans()
        return total

    async def _catch_up(self) -> None:
        """What one more read brings, or several while they are full: traffic is not chased."""
        async with self._turn:
            while await self._settle_batch() == BATCH:
                pass
            await self._close_orphans()

    async def run(self, interval_s: float) -> None:
        """Settle for ever. While the database is away the log keeps everything."""
        reachable = True
        while True:
            try:
                await self._catch_up()
            except (DatabaseUnavailable, Conflict) as error:
                if reachable:
                    log.warning("usage stays in the log: %s", error)
                reachable = False
            else:
                reachable = True
            await asyncio.sleep(interval_s)

    async def finish(self, *, patience_s: float = FINISH_S) -> None:
        """Settle a last time, as the run ends. What the database does not take meanwhile stays in
        the log, which the next start reads: nothing is lost, so nothing has failed."""
        until = self._clock() + patience_s
        while True:
            try:
                await self.settle()
            except (DatabaseUnavailable, Conflict) as error:
                if self._clock() >= until:
                    log.warning("usage stays in the log until the next start: %s", error)
                    return
            else:
                return
            await asyncio.sleep(TRY_AGAIN_S)

    async def _settle_batch(self) -> int:
        if self._cursor is None:
            async with self._database.reading() as session:
                self._cursor = await LedgerRepository(session).position(self._log.id)
        entries = await asyncio.to_thread(self._log.read, self._cursor, BATCH)
        if not entries:
            return 0
        still_open = dict(self._open)
        ended: list[tuple[Started, Finished]] = []
        unmatched: list[str] = []
        old: set[str] = set()
        for entry in entries:
            if isinstance(entry.record, Started):
                still_open[entry.record.request] = entry
                continue
            begun = still_open.pop(entry.record.request, None)
            if begun is None:
                unmatched.append(entry.record.request)
            else:
                assert isinstance(begun.record, Started)
                ended.append((begun.record, entry.record))
                if self._is_old(begun):
                    old.add(begun.record.request)
        await self._write(ended, still_open, entries[-1].end, unmatched=unmatched, old=old)
        return len(entries)

    async def _close_orphans(self) -> None:
        orphans = self.orphans
        if not orphans or self._cursor is None or self._clock() < self._ask_at:
            return
        self._ask_at = self._clock() + ASK_AGAIN_S
        answers = await asyncio.gather(*(self._ask(orphan.request) for orphan in orphans))
        impatient = self._clock() >= self._patient_until
        ended = [
            (orphan, _closing(orphan, counts))
            for orphan, counts in zip(orphans, answers, strict=True)
            if impatient or self._is_known(orphan.request, counts)
        ]
        if ended:
            gone = {orphan.request for orphan, _ in ended}
            still_open = {name: e for name, e in self._open.items() if name not in gone}
            await self._write(ended, still_open, self._cursor, recovered=True, old=gone)
            log.warning("closed %d requests whose gateway had died", len(ended))

    async def _ask(self, request: str) -> Counts | None:
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                return await self._lookup(request)
        except TimeoutError:
            return None

    def _is_known(self, request: str, counts: Counts | None) -> bool:
        """Nothing more is to be learned about it."""
        if counts is None or counts.boot:
            return counts is not None and counts.finished
        twice = request in self._denied
        self._denied ^= {request}
        return twice

    async def _write(
        self,
        ended: list[tuple[Started, Finished]],
        still_open: dict[str, Entry],
        cursor: Position,
        *,
        unmatched: list[str] | None = None,
        recovered: bool = False,
        old: AbstractSet[str] = frozenset(),
    ) -> None:
        """One transaction; this object changes only after it."""
        oldest = next(iter(still_open.values()), None)
        settled = oldest.start if oldest else cursor
        await self._make_partitions(ended)
        async with self._database.unit_of_work() as session:
            rows = LedgerRepository(session)
            batch = await rows.move(self._log.id, settled)
            events = await self._priced(rows, ended, recovered=recovered) if ended else []
            fresh = ended
            if await rows.add_events(events, self._log.id, batch) < len(events):
                mine = await rows.of_batch(self._log.id, batch)  # others were there already
                fresh = [pair for pair in ended if pair[0].request in mine]
            await PaceRepository(session).add(await _paces(fresh))
            lost = set(unmatched) - await rows.known(unmatched) if unmatched else set()
        self._open, self._cursor = still_open, cursor
        self._notice(events, lost)
        if old:
            await self._inherited([event for event in events if event.id in old])
        await asyncio.to_thread(self._log.drop_before, settled.segment)

    async def _priced(
        self,
        rows: LedgerRepository,
        ended: list[tuple[Started, Finished]],
        *,
        recovered: bool,
    ) -> list[Event]:
        count = await rows.price_count()
        if count != self._prices[0]:
            self._prices = count, await rows.price_book()
        book, closed = self._prices[1], await rows.hold_periods()
        events: list[Event] = []
        for number, (started, finished) in enumerate(ended):
            events.append(event_of(started, finished, book, closed=closed, recovered=recovered))
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)  # requests wait no longer than for so many
        return events

    async def _make_partitions(self, ended: list[tuple[Started, Finished]]) -> None:
        """In a transaction of its own: it waits for those who read the ledger."""
        missing = {time_of(started.at_ns).date() for started, _ in ended} - self._partitions
        if missing:
            async with self._database.unit_of_work() as session:
                for day in sorted(missing):
                    await LedgerRepository(session).ensure_partition(day)
            self._partitions |= missing

    def _notice(self, events: list[Event], lost: set[str]) -> None:
        unpriced = [event for event in events if event.price_id is None]
        if unpriced and not self.unpriced:
            log.warning("no price for %s: usage is kept, unpriced", unpriced[0].base_model)
        self.unpriced += len(unpriced)
        for request in sorted(lost):
            log.error("usage of %s has an end and no beginning: the log was damaged", request)


async def _paces(ended: Sequence[tuple[Started, Finished]]) -> Counter[Place]:
    """Requests wait no longer than for some of it."""
    found: Counter[Place] = Counter()
    for first in range(0, len(ended), AT_ONCE):
        found.update(paces_of(ended[first : first + AT_ONCE]))
        await asyncio.sleep(0)
    return found


def _closing(started: Started, counts: Counts | None) -> Finished:
    """The end of a request whose gateway could not write one."""
    if counts is not None and not counts.boot:
        counts = None
    return Finished(
        request=started.request,
        outcome=Outcome.FAILED,
        prompt_tokens=counts.prompt_tokens if counts else started.prompt_tokens,
        cached_tokens=counts.cached_tokens if counts else 0,
        completion_tokens=counts.completion_tokens if counts else 0,
        finish_reason=None,
        engine="",
        boot=counts.boot if counts else "",
        at_ns=started.at_ns,
    )
