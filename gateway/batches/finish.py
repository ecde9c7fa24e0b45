"""The end of a batch: its answers become files, and its rows of lines go.

Files, the batch's state and the end of its lines are one transaction. Killed before that, the
files have no row and are swept away, and the next one in custody writes them anew.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import BinaryIO

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.batches.asker import unanswered
from gateway.batches.custody import Custody
from gateway.batches.lines import Raw, raw_lines, read_line
from gateway.batches.models import Batch, BatchState
from gateway.batches.repository import Claim, Progress, WorkRepository
from gateway.db import Database
from gateway.errors import GatewayError, ResourceNotFound
from gateway.files.models import Purpose, StoredFile
from gateway.files.store import FileStore, new_file_id
from gateway.ids import new_id

AT_ONCE = 100  # lines in memory
KEPT_FOR = timedelta(days=30)
WHY = {
    BatchState.CANCELLED: (
        "batch_cancelled",
        "This request was not executed because the batch was cancelled.",
    ),
    BatchState.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
}


class Finish:
    def __init__(
        self,
        store: FileStore,
        database: Database,
        custody: Custody,
        clock: Callable[[], datetime],
        *,
        line_bytes: int,
    ) -> None:
        self._store, self._database, self._custody = store, database, custody
        self._clock, self._line_bytes = clock, line_bytes

    async def run(self, row: Batch) -> None:
        if row.state == BatchState.IN_PROGRESS:
            row = await self._custody.write(self._begin)
        end = _end_of(row)
        output, _ = await self._file(row, "output", failed=False)
        errors, left = await self._file(row, "errors", failed=True, why=WHY.get(end))

        async def close(session: AsyncSession, row: Batch) -> Batch:
            rows = WorkRepository(session)
            for file in (output, errors):
                if file is not None:
                    rows.add_file(file)
            await rows.forget_lines(row.id)
            return await self._custody.held(
                session,
                Progress(failed=left),
                state=end,
                output_file=output.id if output else None,
                error_file=errors.id if errors else None,
                ended_at=self._clock(),
            )

        await self._custody.write(close)

    async def _begin(self, session: AsyncSession, row: Batch) -> Batch:
        if row.state != BatchState.IN_PROGRESS:  # cancelled meanwhile
            return row
        return await self._custody.held(
            session, state=BatchState.FINALIZING, finalizing_at=self._clock()
        )

    async def _file(
        self, row: Batch, kind: str, *, failed: bool, why: tuple[str, str] | None = None
    ) -> tuple[StoredFile | None, int]:
        """None where it would be empty; and how many lines were never answered."""
        file, left = new_file_id(), 0
        async with drafted(self._store, file) as out:
            async for some in self._answers(row.id, failed=failed):
                await asyncio.to_thread(out.writelines, _encoded(some))
            if why is not None:
                async for some in self._unanswered(row, why):
                    left += len(some)
                    await asyncio.to_thread(out.writelines, _encoded(some))
            nbytes = out.tell()
        if nbytes == 0:
            await asyncio.to_thread(self._store.discard, file)
            return None, left
        now = self._clock()
        kept = timedelta(seconds=row.output_seconds) if row.output_seconds else KEPT_FOR
        return StoredFile(
            id=file,
            project_id=row.project_id,
            filename=f"{row.id}_{kind}.jsonl",
            purpose=Purpose.BATCH_OUTPUT,
            nbytes=nbytes,
            created_at=now,
            expires_at=now + kept,
        ), left

    async def _answers(self, batch: str, *, failed: bool) -> AsyncIterator[Sequence[str]]:
        after, page = 0, [(0, "")]
        while page:
            async with self._database.reading() as session:
                page = list(
                    await WorkRepository(session).answers(
                        batch, failed=failed, after=after, most=AT_ONCE
                    )
                )
            if page:
                after = page[-1][0]
                yield [text for _, text in page]

    async def _unanswered(self, row: Batch, why: tuple[str, str]) -> AsyncIterator[Sequence[str]]:
        async with self._database.reading() as session:
            begun = await WorkRepository(session).begun(row.id)
        try:
            source = await asyncio.to_thread(self._store.open, row.input_file)
        except ResourceNotFound:
            return
        with source:
            reader = raw_lines(source, self._line_bytes)
            while some := await asyncio.to_thread(self._next, reader, row.endpoint, begun):
                yield [unanswered(custom_id, request, *why) for custom_id, request in some]

    def _next(
        self, reader: Iterator[Raw], endpoint: str, begun: dict[int, Claim | None]
    ) -> list[tuple[str, str]]:
        """(custom_id, request) of the next lines without an answer."""
        found: list[tuple[str, str]] = []
        for raw in reader:
            claim = begun.get(raw.number)
            if claim is None and raw.number in begun:
                continue
            try:
                custom_id = read_line(raw, endpoint, self._line_bytes).custom_id
            except GatewayError:  # it was cancelled before anybody had looked
                custom_id = ""
            found.append((custom_id, claim.request if claim else new_id("req")))
            if len(found) == AT_ONCE:
                break
        return found


@asynccontextmanager
async def drafted(store: FileStore, file: str) -> AsyncIterator[BinaryIO]:
    """``store.writing`` with its waits for the disk in threads."""
    context = store.writing(file)
    out = await asyncio.to_thread(context.__enter__)
    try:
        yield out
    except BaseException as error:
        await asyncio.to_thread(context.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(context.__exit__, None, None, None)


def _end_of(row: Batch) -> BatchState:
    if row.cancelling_at is not None:
        return BatchState.CANCELLED
    if row.completed + row.failed < row.total:
        return BatchState.EXPIRED
    return BatchState.COMPLETED


def _encoded(lines: Sequence[str]) -> list[bytes]:
    return [line.encode() + b"\n" for line in lines]
