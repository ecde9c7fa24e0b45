"""A project's batches: made, found by their owner alone, cancelled."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.batches.models import OPEN, Batch, BatchState
from gateway.batches.repository import BatchRepository
from gateway.db import Database
from gateway.errors import (
    BatchQueueFull,
    Conflict,
    InvalidRequest,
    PermissionDenied,
    ResourceNotFound,
)
from gateway.files.models import Purpose
from gateway.files.repository import FileRepository
from gateway.files.shelf import no_file, tenancy
from gateway.identity.principal import Principal
from gateway.ids import new_id

WINDOW, WINDOW_LASTS = "24h", timedelta(hours=24)
INPUT_OUTLIVES = timedelta(days=1)  # the batch that reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A batch as a client asked for it."""

    input_file: str
    endpoint: str
    labels: Mapping[str, str] | None
    output_seconds: int | None


class FileUses:
    """Which files open batches still read."""

    async def reading(self, session: AsyncSession, project: str, file: str) -> bool:
        return await BatchRepository(session, project).reads(file)


class BatchDesk:
    """``hint`` is called once there is something new to do."""

    def __init__(
        self,
        database: Database,
        endpoints: Collection[str],
        *,
        most_open: int,
        clock: Callable[[], datetime],
        hint: Callable[[], None],
    ) -> None:
        self._database, self._endpoints = database, endpoints
        self._most_open, self._clock, self._hint = most_open, clock, hint

    async def create(self, who: Principal, asked: Asked) -> Batch:
        """Raises InvalidRequest, PermissionDenied, ResourceNotFound, BatchQueueFull."""
        if asked.endpoint not in self._endpoints:
            raise InvalidRequest(
                f"endpoint {asked.endpoint[:64]!r} must be one of {', '.join(self._endpoints)}.",
                param="endpoint",
            )
        if who.endpoints is not None and asked.endpoint not in who.endpoints:
            raise PermissionDenied(f"This API key may not be used for {asked.endpoint}.")
        now = self._clock()
        async with self._database.unit_of_work(within=tenancy(who)) as session:
            batches = BatchRepository(session, who.project)
            files = FileRepository(session, who.project)
            file = await files.one(asked.input_file, now, lock=True)
            if file is None:
                raise no_file(asked.input_file, param="input_file_id")
            if file.purpose != Purpose.BATCH:
                raise InvalidRequest(
                    f"The file's purpose is {file.purpose!r}; it must be 'batch'.",
                    param="input_file_id",
                )
            if (open_now := await batches.open()) >= self._most_open:
                raise BatchQueueFull(
                    f"The project has {open_now} batches that have not ended, and may have"
                    f" {self._most_open}."
                )
            row = _batch(who, asked, now)
            file.expires_at = max(file.expires_at, row.expires_at + INPUT_OUTLIVES)
            batches.add(row)
        self._hint()
        return row

    async def one(self, who: Principal, batch: str) -> Batch:
        """Raises ResourceNotFound, the same for another project's batch and for none."""
        async with self._database.reading(within=tenancy(who)) as session:
            row = await BatchRepository(session, who.project).one(batch)
        return _found(row, batch)

    async def page(self, who: Principal, *, most: int, after: str | None) -> Sequence[Batch]:
        """One more than asked for where there are more."""
        async with self._database.reading(within=tenancy(who)) as session:
            return await BatchRepository(session, who.project).page(most=most + 1, after=after)

    async def cancel(self, who: Principal, batch: str) -> Batch:
        """Raises ResourceNotFound, Conflict where it has ended or is about to."""
        async with self._database.unit_of_work(within=tenancy(who)) as session:
            rows = BatchRepository(session, who.project)
            _found(await rows.one(batch), batch)
            await rows.cancel(batch, self._clock())
            row = _found(await rows.one(batch), batch)
            if row.state not in OPEN or row.state == BatchState.FINALIZING:
                raise Conflict(f"Cannot cancel a batch with status '{row.state}'.")
        self._hint()
        return row


def _batch(who: Principal, asked: Asked, now: datetime) -> Batch:
    return Batch(
        id=new_id("batch"),
        project_id=who.project,
        key_id=who.key,
        endpoint=asked.endpoint,
        completion_window=WINDOW,
        state=BatchState.VALIDATING,
        input_file=asked.input_file,
        output_seconds=asked.output_seconds,
        labels=orjson.dumps(asked.labels).decode() if asked.labels else None,
        total=0,
        completed=0,
        failed=0,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        created_at=now,
        expires_at=now + WINDOW_LASTS,
        fence=0,
    )


def _found(row: Batch | None, batch: str) -> Batch:
    if row is None:
        raise ResourceNotFound(f"No batch found with id {batch[:80]!a}.", param="batch_id")
    return row
