"""``/v1/adapters``: a tenant's adapters from upload to retirement.

Paths under ``uploads``, ``aliases`` and ``quota`` are why no adapter can have those names. What is
somebody else's is the same 404 as what does not exist. Nobody's request reaches a file by name.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.adapter_api.callers import Caller, Callers
from gateway.adapter_api.desk import AdapterDesk
from gateway.adapter_api.forms import (
    CompleteUpload,
    CreateUpload,
    SetAlias,
    SetQuota,
)
from gateway.adapter_api.uploads import UploadDesk
from gateway.http import Request as RawRequest
from gateway.identity.rights import Right

CUT_S = 1.0  # how long requests may take to end once they are told to
Json = dict[str, Any]
Tenant = Annotated[str | None, Query(description="admin keys: whose adapters", max_length=64)]
Identify = Callable[..., Awaitable[Caller]]


def adapter_router(callers: Callers, uploads: UploadDesk, desk: AdapterDesk) -> APIRouter:
    """Uploads first, then what is fixed in a path, then names of adapters."""
    router = APIRouter(prefix="/v1/adapters", tags=["adapters"])

    async def caller(request: Request, tenant: Tenant = None) -> Caller:
        return await callers.identify(RawRequest(request.scope, request.receive), tenant)

    _add_uploads(router, caller, uploads)
    _add_aliases(router, caller, desk)
    _add_adapters(router, caller, desk)
    _add_grants(router, caller, callers, desk)
    return router


def _add_uploads(router: APIRouter, caller: Identify, uploads: UploadDesk) -> None:
    Who = Annotated[Caller, Depends(caller)]

    @router.post("", status_code=201, summary="Upload and publish in one multipart request")
    async def upload_whole(request: Request, who: Who) -> Json:
        return await uploads.upload_whole(request, who)

    @router.post("/uploads", status_code=201, summary="Begin an upload in parts")
    async def begin(form: CreateUpload, who: Who) -> Json:
        return await uploads.begin(form, who)

    @router.get("/uploads/{upload}", summary="How far an upload is, and which parts arrived")
    async def status(upload: str, who: Who) -> Json:
        return await uploads.status(upload, who)

    @router.put("/uploads/{upload}/{file}/{part}", summary="Send one part; again if it was cut")
    async def write_part(upload: str, file: str, part: int, request: Request, who: Who) -> Json:
        return await uploads.write_part(request, who, (upload, file, part))

    @router.post("/uploads/{upload}/complete", summary="Validate, try on an engine, publish")
    async def complete(upload: str, form: CompleteUpload, who: Who, response: Response) -> Json:
        return await uploads.complete(upload, form, who, response)

    @router.delete("/uploads/{upload}", status_code=204, summary="Give an upload up")
    async def abort(upload: str, who: Who) -> None:
        await uploads.abort(upload, who)


def _add_aliases(router: APIRouter, caller: Identify, desk: AdapterDesk) -> None:
    Who = Annotated[Caller, Depends(caller)]

    @router.get("/aliases", summary="Your aliases")
    async def aliases(who: Who) -> Json:
        return await desk.aliases(who)

    @router.put("/aliases/{alias}", summary="Switch an alias at once, or give a canary its share")
    async def set_alias(alias: str, form: SetAlias, who: Who) -> Json:
        return await desk.set_alias(alias, form, who)

    @router.post(
        "/aliases/{alias}/rollback", summary="End the canary, or return to the version before"
    )
    async def roll_back(alias: str, who: Who) -> Json:
        return await desk.roll_back(alias, who)

    @router.delete("/aliases/{alias}", status_code=204, summary="Forget an alias")
    async def delete_alias(alias: str, who: Who) -> None:
        await desk.delete_alias(alias, who)


def _add_adapters(router: APIRouter, caller: Identify, desk: AdapterDesk) -> None:
    Who = Annotated[Caller, Depends(caller)]

    @router.get("", summary="Your adapters: names, versions and aliases")
    async def list_adapters(who: Who) -> Json:
        return await desk.listed(who)

    @router.get("/quota", summary="How many adapters and bytes you may keep, and keep")
    async def quota(who: Who) -> Json:
        return await desk.quota(who)

    @router.put("/quota", summary="Set a tenant's quota (admin keys)")
    async def set_quota(form: SetQuota, who: Who) -> Json:
        return await desk.set_quota(form, who)

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
        return await desk.prefetch(adapter, who)


def _add_grants(router: APIRouter, caller: Identify, callers: Callers, desk: AdapterDesk) -> None:
    Who = Annotated[Caller, Depends(caller)]

    @router.put("/{adapter}/grants/{grantee}", summary="Let a tenant use it (admin keys)")
    async def grant(adapter: str, grantee: str, who: Who) -> Json:
        who.require_admin(Right.ADAPTERS)
        await desk.grant(adapter, await callers.project(who.principal, grantee), who)
        return {"object": "adapter.grant", "adapter": adapter, "tenant": grantee}

    @router.delete("/{adapter}/grants/{grantee}", status_code=204, summary="End that (admin keys)")
    async def revoke_grant(adapter: str, grantee: str, who: Who) -> None:
        who.require_admin(Right.ADAPTERS)
        await desk.revoke_grant(adapter, await callers.project(who.principal, grantee), who)
