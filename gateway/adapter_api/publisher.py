"""From a complete upload to a published version: validated, tried by an engine, stored, named.

Nothing reaches an engine before it was validated, and nothing gets a name before an engine tried
it. A refusal keeps all reasons in the upload's row. Belongs to one event loop; blocking work runs
in threads, one upload at a time.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import orjson

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterError, AdapterInvalid, WrongBase
from adapters.validate import LoadReport, validate
from engine.protocol import AdapterRef
from gateway.adapter_api.callers import Caller
from gateway.adapter_api.canary import Canary
from gateway.adapter_api.notes import note_alias, note_versions
from gateway.adapter_api.staging import Staging
from gateway.adapter_api.turns import Turns
from gateway.catalog.bases import Bases, ServedBase
from gateway.catalog.models import Adapter, AdapterUpload, UploadState
from gateway.catalog.repository import UploadRepository
from gateway.catalog.service import CatalogService, Facts, Quota
from gateway.db import Database, DatabaseUnavailable
from gateway.errors import (
    AdapterRefused,
    Conflict,
    GatewayError,
    InvalidRequest,
    OtherBase,
    Unavailable,
)

ATTEMPTS = 5  # at the next version's number, which gateways may want at the same time
log = logging.getLogger(__name__)


class Store(Protocol):
    def put(self, directory: Path) -> str:
        """Copies it in, by its digest. Raises AdapterError."""
        ...


@dataclass(frozen=True, slots=True)
class Accepted:
    adapter: Adapter
    report: dict[str, Any]


class Publisher:
    def __init__(
        self,
        database: Database,
        staging: Staging,
        store: Store,
        bases: Mapping[str, BaseSpec],
        canary: Canary,
        *,
        quota: Quota,
    ) -> None:
        """``bases``: by served name; ``quota``: of projects that have none of their own."""
        self.database, self.staging, self.quota = database, staging, quota
        self._store, self._bases, self._canary = store, bases, canary
        self.served = Bases([ServedBase(name, spec.fingerprint) for name, spec in bases.items()])
        self._turns = Turns()

    async def finish(self, upload: AdapterUpload, who: Caller, sums: dict[str, str]) -> Accepted:
        """The upload was claimed, by ``who``. Its row says how it ended; raises GatewayError too.

        What was nobody's fault can be completed again: the parts are kept.
        """
        try:
            async with self._turns.take(upload.project_id):
                accepted = await self._publish(upload, who, sums)
        except Unavailable as error:
            await self._settle(upload, UploadState.UPLOADING, error.body()["error"])
            raise
        except GatewayError as error:
            await asyncio.to_thread(self.staging.discard, upload.id)
            await self._settle(upload, UploadState.FAILED, error.body()["error"])
            raise
        await asyncio.to_thread(self.staging.discard, upload.id)
        return accepted

    def trained_on(self, base_model: str, fingerprint: str) -> str:
        """The fingerprint of a base that a client named. Raises InvalidRequest."""
        if not base_model:
            return fingerprint
        if (spec := self._bases.get(base_model)) is None:
            served = ", ".join(self._bases)
            raise InvalidRequest(
                f"base_model {base_model[:80]!r} is not served here; served are {served}",
                param="base_model",
            )
        if fingerprint not in ("", spec.fingerprint):
            raise InvalidRequest(
                "base_model and base_fingerprint name different bases", param="base_fingerprint"
            )
        return spec.fingerprint

    async def admit(
        self, folder: Path, *, fingerprint: str = "", force: bool = False
    ) -> tuple[AdapterRef, Facts, dict[str, Any]]:
        """Validate, store and try one directory. Raises GatewayError."""
        report = await asyncio.to_thread(self._validated, folder, fingerprint, force)
        adapter = AdapterRef(report.digest, report.rank, report.invocation)
        await self._stored(folder, report)
        base = self.served.name_of(report.base_fingerprint) or self.served.first
        tried = await self._canary.run(adapter, base)
        warnings = [*report.warnings, *tried.warnings]
        facts = {**asdict(report), "warnings": warnings, "canary": tried.facts()}
        facts["pages"] = tried.pages
        return adapter, Facts.of(report, facts), facts

    async def _publish(self, upload: AdapterUpload, who: Caller, sums: dict[str, str]) -> Accepted:
        await self._note(upload, "putting the parts together")
        folder = await asyncio.to_thread(self.staging.assemble, upload.id, sums)
        await self._note(upload, "validating, storing and trying it on an engine")
        adapter, facts, report = await self.admit(
            folder, fingerprint=upload.base_fingerprint, force=upload.force
        )
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return Accepted(await self._named(upload, who, adapter, facts), report)
            except Conflict:  # another gateway took the same number
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _named(
        self, upload: AdapterUpload, who: Caller, adapter: AdapterRef, facts: Facts
    ) -> Adapter:
        async with self.database.publish(alone=True) as session:
            service = CatalogService(session, upload.project_id, datetime.now(UTC))
            await service.require_room(self.quota, nbytes=facts.nbytes)
            row = await service.publish(upload.name, adapter, facts)
            await session.flush()
            await note_versions(session, who, "adapter.created", [row], digest=row.digest)
            if upload.alias:
                alias = await service.set_alias(upload.alias, f"{row.name}@{row.version}")
                await note_alias(session, who, alias)
            mine = await UploadRepository(session, upload.project_id).one(upload.id)
            if mine is not None:
                mine.state, mine.adapter_id, mine.detail = UploadState.READY, row.id, None
                mine.changed_at = datetime.now(UTC)
        return row

    def _validated(self, folder: Path, fingerprint: str, force: bool) -> LoadReport:
        """Against the base that is named, else the one that it fits. Raises GatewayError."""
        named = [spec for spec in self._bases.values() if spec.fingerprint == fingerprint != ""]
        fitting: list[LoadReport] = []
        failure: GatewayError | None = None
        for spec in named or self._bases.values():
            try:
                fitting.append(_checked(folder, spec, fingerprint, force))
            except (OtherBase, AdapterRefused) as error:
                failure = failure or error
        if len(fitting) == 1:
            return fitting[0]
        if failure is not None and not fitting:
            raise failure
        served = ", ".join(self._bases)
        text = f"the adapter fits several bases ({served}); say with base_model which it is for"
        raise AdapterRefused(text, [f"base_model: {text}"])

    async def _stored(self, folder: Path, report: LoadReport) -> None:
        try:
            digest = await asyncio.to_thread(self._store.put, folder)
        except AdapterInvalid as error:
            raise AdapterRefused(str(error), error.problems) from error
        except (AdapterError, OSError) as error:
            log.error("the adapter store refused %s: %s", report.digest, error)
            raise Unavailable("The adapter could not be stored; try again later.") from error
        if digest != report.digest:
            raise AdapterRefused("the files changed while they were read", ["files: changed"])

    async def _note(self, upload: AdapterUpload, stage: str) -> None:
        await self._settle(upload, UploadState.VALIDATING, {"stage": stage})

    async def _settle(
        self, upload: AdapterUpload, state: UploadState, detail: dict[str, Any]
    ) -> None:
        try:
            async with self.database.unit_of_work() as session:
                row = await UploadRepository(session, upload.project_id).one(upload.id)
                if row is not None:
                    row.state, row.detail = state, orjson.dumps(detail).decode()
                    row.changed_at = datetime.now(UTC)
        except DatabaseUnavailable as error:
            log.warning("upload %s: its state could not be noted: %s", upload.id, error)


def _checked(folder: Path, base: BaseSpec, fingerprint: str, force: bool) -> LoadReport:
    try:
        return validate(folder, base, fingerprint=fingerprint, force=force)
    except WrongBase as error:
        text = f"{error}. Send force=true to publish it all the same."
        raise OtherBase(text, error.problems) from error
    except AdapterInvalid as error:
        raise AdapterRefused(str(error), error.problems) from error
