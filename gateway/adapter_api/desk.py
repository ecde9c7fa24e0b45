"""What is done for a tenant with its adapters: versions, aliases, quotas and grants."""

from typing import Any

from engine.protocol import AdapterRef
from gateway.adapter_api.callers import Caller
from gateway.adapter_api.forms import (
    SetAlias,
    SetQuota,
    alias_of,
    version_of,
)
from gateway.adapter_api.notes import note, note_alias, note_versions
from gateway.adapter_api.publisher import Publisher
from gateway.adapter_api.residents import Residents
from gateway.adapter_api.rows import names_of, service_of
from gateway.catalog.models import Adapter
from gateway.catalog.repository import AdapterRepository
from gateway.catalog.service import Quota, parse_reference
from gateway.identity.rights import Right

Json = dict[str, Any]


class AdapterDesk:
    def __init__(self, publisher: Publisher, residents: Residents) -> None:
        self._publisher, self._residents = publisher, residents
        self._database = publisher.database

    async def listed(self, who: Caller) -> Json:
        async with self._database.reading(within=who.tenancy) as session:
            rows = await AdapterRepository(session, who.project).all()
        names: dict[str, list[Json]] = {}
        for row in rows:
            names.setdefault(row.name, []).append(version_of(row))
        data = [
            {"object": "adapter", "adapter": name, "versions": versions}
            for name, versions in names.items()
        ]
        return {"object": "list", "data": data}

    async def one(self, reference: str, who: Caller) -> Json:
        _, version = parse_reference(reference)
        async with self._database.reading(within=who.tenancy) as session:
            service = service_of(session, who)
            rows = await service.versions(reference)
            if version is not None:
                await session.refresh(rows[0], ["report"])
            names = await names_of(session, who)
            mine = {row.id for row in rows}
            led = [a for a in await service.aliases() if mine & {a.adapter_id, a.canary_id}]
        if version is not None:
            return version_of(rows[0], report=True)
        return {
            "object": "adapter",
            "adapter": reference,
            "versions": [version_of(row) for row in rows],
            "aliases": [alias_of(alias, names) for alias in led],
        }

    async def retire(
        self,
        reference: str,
        who: Caller,
        *,
        grace_s: float | None,
        wait_s: float = 0.0,
        kind: str = "adapter.retired",
    ) -> Json:
        """What runs has ``grace_s`` left; answers once nothing does, or after ``wait_s``."""
        async with self._database.publish(within=who.tenancy, alone=True) as session:
            rows = await service_of(session, who).retire(reference, grace_s=grace_s)
            await note_versions(session, who, kind, rows, grace_s=grace_s)
        ids = [row.id for row in rows]
        running = await self._residents.drained(ids, timeout_s=wait_s)
        return {
            "object": "adapter",
            "versions": [version_of(row) for row in rows],
            "running": running,
        }

    async def pin(self, reference: str, who: Caller, *, pinned: bool) -> Json:
        async with self._database.publish(within=who.tenancy, alone=True) as session:
            rows = await service_of(session, who).pin(reference, pinned)
            await note_versions(session, who, "adapter.updated", rows, pinned=pinned)
        for row in rows if pinned else ():
            self._ask_for(row)
        return {"object": "adapter", "versions": [version_of(row) for row in rows]}

    async def prefetch(self, reference: str, who: Caller) -> Json:
        async with self._database.reading(within=who.tenancy) as session:
            row = await service_of(session, who).ready(reference)
        return {**version_of(row), "engines": self._ask_for(row)}

    def _ask_for(self, row: Adapter) -> int:
        """How many engines were asked."""
        base = self._publisher.served.name_of(row.base_fingerprint)
        return self._residents.prefetch(base, AdapterRef(row.digest, row.rank)) if base else 0

    async def quota(self, who: Caller) -> Json:
        async with self._database.reading(within=who.tenancy) as session:
            service = service_of(session, who)
            limit, used = await service.quota(self._publisher.quota), await service.used()
        return {
            "object": "adapter.quota",
            "max_adapters": limit.max_adapters,
            "max_bytes": limit.max_bytes,
            "adapters": used.max_adapters,
            "bytes": used.max_bytes,
        }

    async def set_quota(self, form: SetQuota, who: Caller) -> Json:
        who.require_admin(Right.RATES)
        async with self._database.unit_of_work(within=who.tenancy) as session:
            await service_of(session, who).set_quota(Quota(form.max_adapters, form.max_bytes))
            limits = {"max_adapters": form.max_adapters, "max_bytes": form.max_bytes}
            await note(session, who, "adapter_quota.updated", who.project, **limits)
        return await self.quota(who)

    async def aliases(self, who: Caller) -> Json:
        async with self._database.reading(within=who.tenancy) as session:
            names = await names_of(session, who)
            rows = await service_of(session, who).aliases()
            return {"object": "list", "data": [alias_of(row, names) for row in rows]}

    async def set_alias(self, alias: str, form: SetAlias, who: Caller) -> Json:
        canary = form.canary
        self._publisher.served.require_free(alias, param="alias")
        async with self._database.publish(within=who.tenancy, alone=True) as session:
            row = await service_of(session, who).set_alias(
                alias,
                form.version,
                canary=canary.version if canary else None,
                percent=canary.percent if canary else 0,
            )
            await note_alias(session, who, row)
            return alias_of(row, await names_of(session, who))

    async def roll_back(self, alias: str, who: Caller) -> Json:
        async with self._database.publish(within=who.tenancy, alone=True) as session:
            row = await service_of(session, who).roll_back(alias)
            await note_alias(session, who, row)
            return alias_of(row, await names_of(session, who))

    async def delete_alias(self, alias: str, who: Caller) -> None:
        async with self._database.publish(within=who.tenancy, alone=True) as session:
            await service_of(session, who).delete_alias(alias)
            await note(session, who, "adapter_alias.deleted", alias)

    async def grant(self, adapter: str, project: str, who: Caller) -> None:
        async with self._database.publish(alone=True) as session:
            await service_of(session, who).grant(adapter, project)
            await note(session, who, "adapter_grant.created", adapter, grantee=project)

    async def revoke_grant(self, adapter: str, project: str, who: Caller) -> None:
        async with self._database.publish(alone=True) as session:
            await service_of(session, who).revoke_grant(adapter, project)
            await note(session, who, "adapter_grant.deleted", adapter, grantee=project)
