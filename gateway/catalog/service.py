"""Adapters of one project: published as the next version of a name, aliased, and retired."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.validate import LoadReport
from engine.protocol import AdapterRef
from gateway.catalog.models import (
    Adapter,
    AdapterAlias,
    AdapterGrant,
    AdapterQuota,
    AdapterState,
)
from gateway.catalog.repository import (
    AdapterRepository,
    AliasRepository,
    GrantRepository,
    QuotaRepository,
    UploadRepository,
)
from gateway.errors import AdapterQuotaExceeded, Conflict, InvalidRequest, ResourceNotFound
from gateway.ids import new_id
from gateway.names import checked_name

RESERVED = frozenset({"uploads", "aliases", "quota"})  # words of the API's own paths
MOST = 2**31 - 1
OPEN_UPLOADS = 32  # of a project at a time: their parts are on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a version beside its digest."""

    nbytes: int = 0
    report: str | None = None  # JSON
    invocation: str | None = None  # JSON
    base: str = ""  # fingerprint of the base it is for

    @classmethod
    def of(cls, report: LoadReport, told: Mapping[str, object]) -> "Facts":
        """``told``: the report as its owner reads it."""
        return cls(
            nbytes=report.nbytes,
            report=orjson.dumps(told).decode(),
            invocation=orjson.dumps(report.invocation).decode() if report.invocation else None,
            base=report.base_fingerprint,
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """What a project may keep."""

    max_adapters: int  # ready versions, and uploads on their way
    max_bytes: int


class CatalogService:
    """Runs inside the caller's unit of work, never commits."""

    def __init__(self, session: AsyncSession, project: str, now: datetime) -> None:
        self._rows = AdapterRepository(session, project)
        self._aliases = AliasRepository(session, project)
        self._grants = GrantRepository(session, project)
        self._quotas = QuotaRepository(session, project)
        self._uploads = UploadRepository(session, project)
        self._project, self._now = project, now

    async def publish(self, name: str, adapter: AdapterRef, facts: Facts | None = None) -> Adapter:
        """The name means the new version from the commit on. Versions are never reused."""
        versions = await self._rows.versions(checked_adapter(name))
        facts = facts or Facts()
        row = Adapter(
            id=new_id("adp"),
            project_id=self._rows.project,
            name=name,
            version=max((row.version for row in versions), default=0) + 1,
            digest=adapter.digest,
            rank=adapter.rank,
            state=AdapterState.READY,
            created_at=self._now,
            retired_at=None,
            nbytes=facts.nbytes,
            report=facts.report,
            invocation=facts.invocation,
            base_fingerprint=facts.base,
            pinned=any(row.pinned for row in versions if row.state == AdapterState.READY),
        )
        self._rows.add(row)
        return row

    async def versions(self, reference: str) -> list[Adapter]:
        """Retired ones too. ``name`` or ``name@3``. Raises ResourceNotFound."""
        name, version = parse_reference(reference)
        found = [row for row in await self._rows.versions(name) if version in (None, row.version)]
        if not found:
            raise not_found(reference)
        return found

    async def ready(self, reference: str) -> Adapter:
        """The version, or the newest ready one of a name. Raises ResourceNotFound."""
        found = [row for row in await self.versions(reference) if row.state == AdapterState.READY]
        if not found:
            raise not_found(reference)
        return found[-1]

    async def retire(self, reference: str, *, grace_s: float | None = None) -> list[Adapter]:
        """``name`` retires every version, ``name@3`` one. Raises ResourceNotFound, Conflict.

        What runs on them then has so many seconds left, or as long as it takes.
        """
        retired = [row for row in await self.versions(reference) if row.state == AdapterState.READY]
        if not retired:
            raise not_found(reference)
        ids = {row.id for row in retired}
        for alias in await self._aliases.all():
            if ids & {alias.adapter_id, alias.canary_id}:
                raise Conflict(
                    f"alias {alias.name!r} leads to {reference[:80]!r}; move or delete it first"
                )
        for row in retired:
            row.state, row.retired_at, row.pinned = AdapterState.RETIRED, self._now, False
            row.ends_at = None if grace_s is None else self._now + timedelta(seconds=grace_s)
        return retired

    async def pin(self, reference: str, pinned: bool) -> list[Adapter]:
        """Keep it close to the engines, or stop doing so."""
        await self.ready(reference)
        rows = [row for row in await self.versions(reference) if row.state == AdapterState.READY]
        for row in rows:
            row.pinned = pinned
        return rows

    async def aliases(self) -> Sequence[AdapterAlias]:
        return await self._aliases.all()

    async def alias(self, name: str) -> AdapterAlias:
        """Raises ResourceNotFound."""
        found = await self._aliases.one(name)
        if found is None:
            raise ResourceNotFound(f"no alias {name[:80]!r}", param="alias")
        return found

    async def set_alias(
        self, name: str, version: str, *, canary: str | None = None, percent: int = 0
    ) -> AdapterAlias:
        """Switch at once. The version before is what ``roll_back`` returns to.

        Raises InvalidRequest.
        """
        checked_adapter(name, param="alias")
        if not 0 <= percent <= 100 or (canary is None) != (percent == 0):
            raise InvalidRequest(
                "canary: give a version and a percent from 1 to 100", param="canary.percent"
            )
        target = await self.ready(version)
        beside = await self.ready(canary) if canary else None
        row = await self._aliases.one(name)
        if row is None:
            row = AdapterAlias(
                project_id=self._project, name=name, adapter_id=target.id, previous_id=None,
                canary_id=None, canary_percent=0, changed_at=self._now,
            )  # fmt: skip
            self._aliases.add(row)
        elif row.adapter_id != target.id:
            row.previous_id, row.adapter_id = row.adapter_id, target.id
        row.canary_id = beside.id if beside else None
        row.canary_percent, row.changed_at = percent, self._now
        return row

    async def roll_back(self, name: str) -> AdapterAlias:
        """End the canary if there is one, else return to the version before. Raises Conflict."""
        row = await self.alias(name)
        if row.canary_id is not None:
            row.canary_id, row.canary_percent = None, 0
        else:
            before = await self._rows.by_id(row.previous_id) if row.previous_id else None
            if before is None or before.state != AdapterState.READY:
                raise Conflict(f"alias {name[:80]!r} has no version before that is still ready")
            row.adapter_id, row.previous_id = before.id, row.adapter_id
        row.changed_at = self._now
        return row

    async def delete_alias(self, name: str) -> None:
        await self._aliases.remove(await self.alias(name))

    async def grant(self, name: str, grantee: str) -> None:
        """Idempotent. Raises ResourceNotFound for a name without a ready version."""
        await self.ready(name)
        if grantee not in {grant.grantee_id for grant in await self._grants.of(name)}:
            self._grants.add(
                AdapterGrant(
                    project_id=self._project, name=name, grantee_id=grantee, created_at=self._now
                )
            )

    async def revoke_grant(self, name: str, grantee: str) -> None:
        for grant in await self._grants.of(name):
            if grant.grantee_id == grantee:
                await self._grants.remove(grant)

    async def quota(self, default: Quota) -> Quota:
        own = await self._quotas.own()
        return Quota(own.max_adapters, own.max_bytes) if own else default

    async def set_quota(self, quota: Quota) -> None:
        """Raises InvalidRequest."""
        if not 0 <= quota.max_adapters <= MOST or not 0 <= quota.max_bytes < 1 << 62:
            raise InvalidRequest("quota: numbers must not be negative", param="max_adapters")
        own = await self._quotas.own()
        if own is None:
            own = AdapterQuota(project_id=self._project, max_adapters=0, max_bytes=0)
            self._quotas.add(own)
        own.max_adapters, own.max_bytes = quota.max_adapters, quota.max_bytes

    async def used(self) -> Quota:
        """What the quota counts; bytes of equal content are counted once."""
        ready = await self._rows.sizes()
        return Quota(len(ready) + len(await self._uploads.open()), sum(dict(ready).values()))

    async def require_room(self, default: Quota, *, adapters: int = 0, nbytes: int = 0) -> None:
        """Raises AdapterQuotaExceeded."""
        limit, used = await self.quota(default), await self.used()
        if adapters and len(await self._uploads.open()) + adapters > OPEN_UPLOADS:
            raise AdapterQuotaExceeded(
                f"{OPEN_UPLOADS} uploads are on their way. Complete some first, or give them up."
            )
        if used.max_adapters + adapters > limit.max_adapters:
            raise AdapterQuotaExceeded(
                f"{used.max_adapters} adapters are kept or on their way;"
                f" this tenant may have {limit.max_adapters}. Retire some first."
            )
        if used.max_bytes + nbytes > limit.max_bytes:
            raise AdapterQuotaExceeded(
                f"{used.max_bytes} bytes are kept and {nbytes} more are wanted;"
                f" this tenant may have {limit.max_bytes}. Retire some first."
            )


def checked_adapter(name: str, *, param: str = "adapter") -> str:
    """A name of an adapter or an alias. Raises InvalidRequest."""
    if checked_name(name, param=param) in RESERVED:
        raise InvalidRequest(f"{param} {name!r}: the word is part of the API's paths", param=param)
    return name


def parse_reference(reference: str) -> tuple[str, int | None]:
    """``name`` or ``name@3``. Raises InvalidRequest."""
    name, at, version = reference.partition("@")
    if at and not (version.isascii() and version.isdigit() and len(version) < 10):
        raise InvalidRequest(f"adapter {reference[:80]!r}: write name or name@3")
    return name, int(version) if at else None


def not_found(reference: str) -> ResourceNotFound:
    """Also for what belongs to others: existence is not disclosed."""
    return ResourceNotFound(f"no adapter {reference[:80]!r} in this tenant", param="adapter")
