"""An upload from its first part to the published version, whoever sends it: a key over HTTP, or the
dashboard."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.adapter_api.callers import Caller
from gateway.adapter_api.forms import (
    CompleteUpload,
    CreateUpload,
    upload_of,
    version_of,
)
from gateway.adapter_api.multipart import receive_form
from gateway.adapter_api.notes import note
from gateway.adapter_api.publisher import ATTEMPTS, Accepted, Publisher
from gateway.adapter_api.rows import service_of
from gateway.catalog.models import AdapterUpload, UploadState
from gateway.catalog.repository import UploadRepository
from gateway.catalog.service import checked_adapter
from gateway.errors import (
    AdapterQuotaExceeded,
    Conflict,
    InvalidRequest,
    ResourceNotFound,
    Unavailable,
)
from gateway.http import BODY_SECONDS, ClientGone
from gateway.ids import new_id

HEADERS = 16 << 20  # bytes of configs and headers, which no quota counts
Json = dict[str, Any]


class UploadDesk:
    """Belongs to one event loop. What cannot be done raises a GatewayError; of another's upload
    nothing is known."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._database, self._staging = publisher.database, publisher.staging
        self._running: set[asyncio.Task[Accepted]] = set()

    async def begin(self, form: CreateUpload, who: Caller) -> Json:
        row = await self._new(form, who)
        return upload_of(row, {})

    async def upload_whole(self, request: Request, who: Caller) -> Json:
        limit = min(self._staging.max_bytes, await self._room(who))
        form, files = await receive_form(request, limit=limit)
        row = await self._new(form, who)
        try:
            for name, pieces in files.items():
                number = 1
                for sized in pieces.parts():
                    await self._staging.write_part(row.id, name, number, sized)
                    number += 1
        except BaseException:
            await asyncio.shield(self._drop(row, who))
            raise
        finally:
            for pieces in files.values():
                pieces.close()
        if not await self._claim(row.id, who):
            raise Conflict("the upload was given up meanwhile")
        try:
            return _published(await asyncio.shield(self._start(row, who, {})))
        except Unavailable:  # the client sends all of it again
            await self._drop(row, who)
            raise

    async def status(self, upload: str, who: Caller) -> Json:
        row = await self._find(upload, who)
        return upload_of(row, await asyncio.to_thread(self._staging.parts, row.id))

    async def write_part(self, request: Request, who: Caller, place: tuple[str, str, int]) -> Json:
        upload, file, number = place
        row = await self._find(upload, who)
        if row.state != UploadState.UPLOADING:
            raise Conflict(f"the upload is {row.state}; no part is taken any more")
        sha256, room = request.headers.get("x-content-sha256", ""), await self._room(who, upload)
        part = await self._staging.write_part(
            row.id, file, number, _body(request), sha256=sha256, room=room
        )
        await self._still_wanted(upload, who)
        return {"object": "adapter.part", "file": file, "part": number, "bytes": part.nbytes}

    async def _still_wanted(self, upload: str, who: Caller) -> None:
        """What came while another gateway ended the upload is not left behind. Raises."""
        try:
            state = (await self._find(upload, who)).state
        except ResourceNotFound:
            await asyncio.to_thread(self._staging.discard, upload)
            raise
        if state in (UploadState.READY, UploadState.FAILED):
            await asyncio.to_thread(self._staging.discard, upload)
            raise Conflict(f"the upload is {state}; no part is taken any more")

    async def complete(
        self, upload: str, form: CompleteUpload, who: Caller, response: Response
    ) -> Json:
        row = await self._find(upload, who)
        if not await self._claim(row.id, who):
            raise Conflict(f"the upload is {(await self._find(upload, who)).state}")
        task = self._start(row, who, form.sha256)
        if form.wait:
            return _published(await asyncio.shield(task))
        response.status_code = HTTPStatus.ACCEPTED
        return await self.status(upload, who)

    async def abort(self, upload: str, who: Caller) -> None:
        row = await self._find(upload, who)
        if not await self._drop(row, who):
            await self._find(upload, who)  # somebody else gave it up meanwhile
            raise Conflict("the upload is being validated; wait until that has ended")

    async def _new(self, form: CreateUpload, who: Caller) -> AdapterUpload:
        names = {"name": form.name} | ({} if form.alias is None else {"alias": form.alias})
        for param, name in names.items():
            self._publisher.served.require_free(checked_adapter(name, param=param), param=param)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                row = await self._added(form, who)
                break
            except Conflict:  # somebody else was faster in writing the audit log
                if attempt == ATTEMPTS:
                    raise
        await asyncio.to_thread(self._staging.begin, row.id)
        return row

    async def _added(self, form: CreateUpload, who: Caller) -> AdapterUpload:
        now = datetime.now(UTC)
        row = AdapterUpload(
            id=new_id("upl"),
            project_id=who.project,
            name=form.name,
            alias=form.alias,
            state=UploadState.UPLOADING,
            force=form.force,
            base_fingerprint=self._publisher.trained_on(form.base_model, form.base_fingerprint),
            detail=None,
            adapter_id=None,
            created_at=now,
            changed_at=now,
        )
        async with self._database.unit_of_work(within=who.tenancy) as session:
            await service_of(session, who).require_room(self._publisher.quota, adapters=1)
            UploadRepository(session, who.project).add(row)
            await note(session, who, "adapter_upload.created", row.id, name=form.name)
        return row

    async def _room(self, who: Caller, upload: str = "") -> int:
        """Bytes this upload may have in all: what is kept and on its way counts.

        Raises AdapterQuotaExceeded where none are left.
        """
        async with self._database.reading(within=who.tenancy) as session:
            service = service_of(session, who)
            limit, used = await service.quota(self._publisher.quota), await service.used()
            rows = await UploadRepository(session, who.project).open()
            others = [row.id for row in rows if row.id != upload]
        coming = await asyncio.to_thread(lambda: sum(map(self._staging.nbytes, others)))
        room = limit.max_bytes - used.max_bytes - coming
        if room <= 0:
            raise AdapterQuotaExceeded(
                f"{used.max_bytes} bytes are kept and {coming} on their way;"
                f" this tenant may have {limit.max_bytes}. Retire some first."
            )
        return room + HEADERS

    async def _find(self, upload: str, who: Caller) -> AdapterUpload:
        async with self._database.reading(within=who.tenancy) as session:
            row = await UploadRepository(session, who.project).one(upload)
        if row is None:
            raise ResourceNotFound("no such upload")
        return row

    async def _claim(self, upload: str, who: Caller) -> bool:
        async with self._database.unit_of_work(within=who.tenancy) as session:
            return await UploadRepository(session, who.project).claim(upload)

    async def _drop(self, row: AdapterUpload, who: Caller) -> bool:
        """Whether it was dropped: not while it is being validated."""
        async with self._database.unit_of_work(within=who.tenancy) as session:
            dropped = await UploadRepository(session, who.project).give_up(row.id)
            if dropped:
                await note(session, who, "adapter_upload.deleted", row.id, name=row.name)
        if dropped:
            await asyncio.to_thread(self._staging.discard, row.id)
        return dropped

    def _start(
        self, row: AdapterUpload, who: Caller, sums: dict[str, str]
    ) -> asyncio.Task[Accepted]:
        """Goes on when the client leaves; its outcome is in the upload's row."""
        work = self._publisher.finish(row, who, sums)
        task = asyncio.create_task(work, name=f"publish {row.id}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Accepted]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may


def _published(accepted: Accepted) -> Json:
    return {**version_of(accepted.adapter), "report": accepted.report}


async def _body(request: Request) -> AsyncIterator[bytes]:
    """A raw body, piece by piece. Raises ClientGone, InvalidRequest when it stalls."""
    while True:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await request.receive()
        except TimeoutError:
            raise InvalidRequest("The body stalled.", code="timeout") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
