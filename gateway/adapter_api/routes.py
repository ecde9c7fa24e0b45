"""``/v1/adapters``: a tenant's adapters from upload to retirement.

Paths under ``uploads``, ``aliases`` and ``quota`` are why no adapter can have those names. What is
somebody else's is the same 404 as what does not exist. Nobody's request reaches a file by name.
"""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.adapter_api.callers import Caller, Callers
from gateway.adapter_api.desk import AdapterDesk, names_of, service_of
from gateway.adapter_api.forms import (
    CompleteUpload,
    CreateUpload,
    SetAlias,
    SetQuota,
    alias_of,
    version_of,
)
from gateway.adapter_api.notes import note, note_alias
from gateway.adapter_api.publisher import Publisher
from gateway.adapter_api.residents import Residents
from gateway.catalog.service import Quota
from gateway.http import Request as RawRequest
from gateway.identity.rights import Right

CUT_S = 1.0  # how long requests may take to end once they are told to
Json = dict[str, Any]
Tenant = Annotated[str | None, Query(description="admin keys: whose adapters", max_length=64)]


def adapter_router(callers: Callers, publisher: Publisher, residents: Residents) -> APIRouter:
    router = APIRouter(prefix="/v1/adapters", tags=["adapters"])
    desk = AdapterDesk(publisher, residents)

    async def caller(request: Request, tenant: Tenant = None) -> Caller:
        return await callers.identify(RawRequest(request.scope, request.receive), tenant)

    Who = Annotated[Caller, Depends(caller)]

    @router.get("", summary="Your adapters: names, versions and aliases")
    async def list_adapters(who: Who) -> Json:
        return await desk.listed(who)

    @router.post("", status_code=201, summary="Upload and publish in one multipart request")
    async def upload_whole(request: Request, who: Who) -> Json:
        return await desk.upload_whole(request, who)

    @router.post("/uploads", status_code=201, summary="Begin an upload in parts")
    async def begin(form: CreateUpload, who: Who) -> Json:
        return await desk.begin(form, who)

    @router.get("/uploads/{upload}", summary="How far an upload is, and which parts arrived")
    async def status(upload: str, who: Who) -> Json:
        return await desk.status(upload, who)

    @router.put("/uploads/{upload}/{file}/{part}", summary="Send one part; again if it was cut")
    async def write_part(upload: str, file: str, part: int, request: Request, who: Who) -> Json:
        return await desk.write_part(request, who, (upload, file, part))

    @router.post("/uploads/{upload}/complete", summary="Validate, try on an engine, publish")
    async def complete(upload: str, form: CompleteUpload, who: Who, response: Response) -> Json:
        return await desk.complete(upload, form, who, response)

    @router.delete("/uploads/{upload}", status_code=204, summary="Give an upload up")
    async def abort(upload: str, who: Who) -> None:
        await desk.abort(upload, who)

    @router.get("/aliases", summary="Your aliases")
    async def aliases(who: Who) -> Json:
        async with publisher.database.reading(within=who.tenancy) as session:
            names = await names_of(session, who)
            rows = await service_of(session, who).aliases()
            return {"object": "list", "data": [alias_of(row, names) for row in rows]}

    @router.put("/aliases/{alias}", summary="Switch an alias at once, or give a canary its share")
    async def set_alias(alias: str, form: SetAlias, who: Who) -> Json:
        canary = form.canary
        publisher.served.require_free(alias, param="alias")
        async with publisher.database.publish(within=who.tenancy, alone=True) as session:
            row = await service_of(session, who).set_alias(
                alias,
                form.version,
                canary=canary.version if canary else None,
                percent=canary.percent if canary else 0,
            )
            await note_alias(session, who, row)
            return alias_of(row, await names_of(session, who))

    @router.post(
        "/aliases/{alias}/rollback", summary="End the canary, or return to the version before"
    )
    async def roll_back(alias: str, who: Who) -> Json:
        async with publisher.database.publish(within=who.tenancy, alone=True) as session:
            row = await service_of(session, who).roll_back(alias)
            await note_alias(session, who, row)
            return alias_of(row, await names_of(session, who))

    @router.delete("/aliases/{alias}", status_code=204, summary="Forget an alias")
    async def delete_alias(alias: str, who: Who) -> None:
        async with publisher.database.publish(within=who.tenancy, alone=True) as session:
            await service_of(session, who).delete_alias(alias)
            await note(session, who, "adapter_alias.deleted", alias)

    @router.get("/quota", summary="How many adapters and bytes you may keep, and keep")
    async def quota(who: Who) -> Json:
        return await desk.quota(who)

    @router.put("/quota", summary="Set a tenant's quota (admin keys)")
    async def set_quota(form: SetQuota, who: Who) -> Json:
        who.require_admin(Right.RATES)
        async with publisher.database.unit_of_work(within=who.tenancy) as session:
            await service_of(session, who).set_quota(Quota(form.max_adapters, form.max_bytes))
            limits = {"max_adapters": form.max_adapters, "max_bytes": form.max_bytes}
            await note(session, who, "adapter_quota.updated", who.project, **limits)
        return await desk.quota(who)

    @router.get("/{adapter}", summary="All versions of an adapter, or one (name@3) with its report")
    async def one(adapter: str, who: Who) -> Json:
        return await desk.one(adapter, who)

    @router.post("/{adapter}/retire", summary="Take no new requests; name or name@3")
    async def retire(
        adapter: str, who: Who, grace_s: Annotated[float | None, Query(ge=0, le=600)] = None
    ) -> Json:
        return await desk.retire(adapter, who, grace_s=grace_s)

    @router.delete(
        "/{adapter}", summary="Retire; what still runs after wait_s ends with adapter_retired"
    )
    async def delete(
        adapter: str,
        who: Who,
        response: Response,
        wait_s: Annotated[float, Query(ge=0, le=600)] = 30.0,
    ) -> Json:
        found = await desk.retire(
            adapter, who, grace_s=wait_s, wait_s=wait_s + CUT_S, kind="adapter.deleted"
        )
        response.status_code = HTTPStatus.ACCEPTED if found["running"] else HTTPStatus.OK
        return found

    @router.put("/{adapter}/pin", summary="Keep it close to the engines")
    async def pin(adapter: str, who: Who) -> Json:
        return await desk.pin(adapter, who, pinned=True)

    @router.delete("/{adapter}/pin", summary="Stop doing so")
    async def unpin(adapter: str, who: Who) -> Json:
        return await desk.pin(adapter, who, pinned=False)

    @router.post("/{adapter}/prefetch", status_code=202, summary="Bring it to every engine now")
    async def prefetch(adapter: str, who: Who) -> Json:
        async with publisher.database.reading(within=who.tenancy) as session:
            row = await service_of(session, who).ready(adapter)
        return {**version_of(row), "engines": desk.prefetch(row)}

    @router.put("/{adapter}/grants/{grantee}", summary="Let a tenant use it (admin keys)")
    async def grant(adapter: str, grantee: str, who: Who) -> Json:
        who.require_admin(Right.ADAPTERS)
        project = await callers.project(who.principal, grantee)
        async with publisher.database.publish(alone=True) as session:
            await service_of(session, who).grant(adapter, project)
            await note(session, who, "adapter_grant.created", adapter, grantee=project)
        return {"object": "adapter.grant", "adapter": adapter, "tenant": grantee}

    @router.delete("/{adapter}/grants/{grantee}", status_code=204, summary="End that (admin keys)")
    async def revoke_grant(adapter: str, grantee: str, who: Who) -> None:
        who.require_admin(Right.ADAPTERS)
        project = await callers.project(who.principal, grantee)
        async with publisher.database.publish(alone=True) as session:
            await service_of(session, who).revoke_grant(adapter, project)
            await note(session, who, "adapter_grant.deleted", adapter, grantee=project)

    return router
