"""One batch from its validation to its files, by the gateway that has it in custody.

A line is claimed, asked, and its answer written with its bill in one transaction; so many answers
as came meanwhile share one. Killed at any point, it is taken up again from what is written: what
was answered stays, what was asked without an answer is asked anew, and nothing is billed for that.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.batches.asker import Answered, Asker
from gateway.batches.bill import Bills
from gateway.batches.custody import Custody
from gateway.batches.finish import Finish
from gateway.batches.lines import Findings, Line, Raw, check_input, raw_lines, read_line
from gateway.batches.models import Batch, BatchState
from gateway.batches.repository import Claim, Progress, WorkRepository
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import InvalidRequest, ModelNotFound, ResourceNotFound, Unauthenticated
from gateway.files.store import FileStore
from gateway.identity.principal import Principal
from gateway.ids import new_id

AGAIN_S = 1.0  # until what the database did not take is written again
CLAIMED = 32  # lines at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every batch of a gateway is worked on with."""

    database: Database
    store: FileStore
    asker: Asker
    bills: Bills
    principal_of: Callable[[str], Principal]
    known: Callable[[Principal, str], object]  # raises ModelNotFound
    lines_at_once: int  # of one batch, those that wait for their limits included
    line_bytes: int
    clock: Callable[[], datetime]


class Work:
    """``run`` it once. Raises CustodyLost, DatabaseUnavailable."""

    def __init__(self, tools: Tools, custody: Custody) -> None:
        self._do, self._custody = tools, custody
        self._slots = asyncio.Semaphore(tools.lines_at_once)
        self._answered: list[Answered] = []
        self._news = asyncio.Event()
        self._asked_all = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(self._custody.beat())
            await self._through()
            beat.cancel()

    async def _through(self) -> None:
        row = await self._custody.write()
        if row.state == BatchState.VALIDATING:
            row = await self._validate(row)
        if row.state == BatchState.IN_PROGRESS:
            row = await self._ask_lines(row)
        if row.state in (BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING):
            finish = Finish(
                self._do.store,
                self._do.database,
                self._custody,
                self._do.clock,
                line_bytes=self._do.line_bytes,
            )
            await finish.run(row)

    async def _validate(self, row: Batch) -> Batch:
        """Afterwards it is in progress, failed, or being cancelled."""
        findings = await self._findings(row)

        async def change(session: AsyncSession, held: Batch) -> Batch:
            if held.state != BatchState.VALIDATING:  # cancelled meanwhile
                return await self._custody.held(session, total=findings.lines)
            return await self._custody.held(session, **self._found(findings))

        return await self._custody.write(change)

    def _found(self, findings: Findings) -> dict[str, Any]:
        now = self._do.clock()
        if findings.errors:
            told = orjson.dumps({"object": "list", "data": findings.errors}).decode()
            return {"state": BatchState.FAILED, "errors": told, "ended_at": now}
        return {
            "state": BatchState.IN_PROGRESS,
            "in_progress_at": now,
            "total": findings.lines,
            "model": findings.model,
        }

    async def _findings(self, row: Batch) -> Findings:
        try:
            principal = self._do.principal_of(row.key_id)
            source = await asyncio.to_thread(self._do.store.open, row.input_file)
        except (Unauthenticated, ResourceNotFound) as error:
            findings = Findings()
            findings.refuse(InvalidRequest(error.message, code=error.detail_code), None)
            return findings

        def known(name: str) -> bool:
            try:
                self._do.known(principal, name)
            except ModelNotFound:
                return False
            return True

        with source:
            return await asyncio.to_thread(
                check_input, source, row.endpoint, limit=self._do.line_bytes, known=known
            )

    async def _ask_lines(self, row: Batch) -> Batch:
        """Until every line is answered, or it is told to stop and what was begun has ended."""
        async with self._do.database.reading() as session:
            begun = await WorkRepository(session).begun(row.id)
        source = await asyncio.to_thread(self._do.store.open, row.input_file)
        with source:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write_answers())
                async with asyncio.TaskGroup() as lines:
                    await self._begin_lines(row, source, begun, lines)
                self._asked_all = True
                self._news.set()
                await writer
        return await self._custody.write()

    async def _begin_lines(
        self,
        row: Batch,
        source: BinaryIO,
        begun: dict[int, Claim | None],
        group: asyncio.TaskGroup,
    ) -> None:
        reader = raw_lines(source, self._do.line_bytes)
        stop = self._custody.stop
        while not stop.is_set():
            some = await asyncio.to_thread(self._next, reader, row.endpoint, begun)
            if not some:
                return
            for line, claim in zip(some, await self._claim(some, begun), strict=True):
                await self._slots.acquire()
                if stop.is_set():
                    return
                task = group.create_task(self._ask(row, line, claim))
                task.add_done_callback(self._free_slot)

    def _next(
        self, reader: Iterator[Raw], endpoint: str, begun: dict[int, Claim | None]
    ) -> list[Line]:
        """The next lines without an answer."""
        found: list[Line] = []
        for raw in reader:
            if raw.number not in begun or begun[raw.number] is not None:
                found.append(read_line(raw, endpoint, self._do.line_bytes))
            if len(found) == CLAIMED:
                break
        return found

    async def _claim(
        self, lines: Sequence[Line], begun: dict[int, Claim | None]
    ) -> Sequence[Claim]:
        now, claims, again = self._do.clock(), [], []
        for line in lines:
            before = begun.get(line.number)
            claim = Claim(
                line=line.number,
                request=before.request if before else new_id("req"),
                begun_at=before.begun_at if before else now,
                attempt=before.attempt + 1 if before else 1,
            )
            claims.append(claim)
            if before:
                again.append(claim)
        fresh = [claim for claim in claims if claim.attempt == 1]

        async def change(session: AsyncSession, row: Batch) -> Batch:
            await WorkRepository(session).begin(row.id, fresh, again)
            return row

        await self._custody.write(change)
        return claims

    async def _ask(self, row: Batch, line: Line, claim: Claim) -> None:
        answered = await self._do.asker.ask(
            line, claim, key=row.key_id, endpoint=row.endpoint, stop=self._custody.stop
        )
        if answered is not None:
            self._answered.append(answered)
            self._news.set()

    def _free_slot(self, _task: asyncio.Task[None]) -> None:
        """Also of one that was cancelled before it began."""
        self._slots.release()

    async def _write_answers(self) -> None:
        """All that came, in one transaction, again and again; those that come meanwhile gather."""
        some: list[Answered] = []
        try:
            while not (self._asked_all and not self._answered):
                await self._news.wait()
                self._news.clear()
                some, self._answered = self._answered, []
                if some:
                    await self._write(some)
                    for answered in some:
                        await answered.attempt.keep()
                some = []
        finally:
            for answered in (*some, *self._answered):  # it was lost, or we are stopped
                await answered.attempt.discard()

    async def _write(self, some: Sequence[Answered]) -> None:
        used = [used for answered in some if (used := answered.used)]

        async def change(session: AsyncSession, row: Batch) -> Batch:
            rows = WorkRepository(session)
            if again and await rows.is_answered(row.id, some[0].claim.line):
                return row  # it was written after all, and only the word of it was lost
            answers = ((a.claim.line, a.text, a.failed) for a in some)
            await rows.answer(row.id, answers)
            await self._do.bills.write(session, used)
            return await self._custody.held(session, progress_of(some))

        again = False
        while True:
            try:
                await self._do.bills.prepare(used)
                await self._custody.write(change)
                return
            except DatabaseUnavailable:
                again = True
                await asyncio.sleep(AGAIN_S)


def progress_of(some: Sequence[Answered]) -> Progress:
    """Tokens are of answers, as the output file tells them."""
    ends = [a.attempt.ended for a in some if a.attempt.ended is not None and not a.failed]
    return Progress(
        completed=sum(not answered.failed for answered in some),
        failed=sum(answered.failed for answered in some),
        prompt_tokens=sum(end.prompt_tokens for end in ends),
        cached_tokens=sum(end.cached_tokens for end in ends),
        completion_tokens=sum(end.completion_tokens for end in ends),
    )
