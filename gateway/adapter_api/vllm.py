"""vLLM's two routes for operators, so that what manages adapters there manages them here.

They name a directory on this machine, so they take admin keys alone. What is loaded belongs to
the operator and is granted to every tenant of the organisation.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from gateway.adapter_api.callers import OPERATOR, Caller, Callers
from gateway.adapter_api.forms import LoadLora, UnloadLora
from gateway.adapter_api.notes import note, note_versions
from gateway.adapter_api.publisher import Publisher
from gateway.catalog.service import CatalogService, checked_adapter
from gateway.db import Database
from gateway.errors import AdapterLoaded, InvalidRequest, ResourceNotFound
from gateway.http import Request as RawRequest
from gateway.identity.repository import IdentityRepository
from gateway.identity.rights import Right


def vllm_router(callers: Callers, publisher: Publisher) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["adapters"])

    async def operator(request: Request) -> Caller:
        who = await callers.identify(RawRequest(request.scope, request.receive), None)
        who.require_admin(Right.ADAPTERS)
        return who

    @router.post("/load_lora_adapter", summary="As in vLLM: publish a directory of this machine")
    async def load(form: LoadLora, request: Request) -> PlainTextResponse:
        who = await operator(request)
        checked_adapter(form.lora_name, param="lora_name")
        if not form.load_inplace and await _loaded(publisher.database, who, form.lora_name):
            raise AdapterLoaded(
                f"The lora adapter '{form.lora_name}' has already been loaded. Set load_inplace to"
                " true to serve this directory under that name from now on.",
                param="load_inplace",
            )
        folder = Path(form.lora_path)
        if not folder.is_absolute() or not await asyncio.to_thread(folder.is_dir):
            raise InvalidRequest("lora_path: no such directory here", param="lora_path")
        adapter, facts, _ = await publisher.admit(folder, force=True)
        async with publisher.database.publish(alone=True) as session:
            service = CatalogService(session, who.project, datetime.now(UTC))
            row = await service.publish(form.lora_name, adapter, facts)
            await note_versions(session, who, "adapter.created", [row], digest=row.digest)
            for project in await IdentityRepository(session).projects():
                ours = project.organisation_id == who.principal.organisation
                if ours and project.name != OPERATOR:
                    await service.grant(form.lora_name, project.id)
                    await note(
                        session, who, "adapter_grant.created", form.lora_name, grantee=project.id
                    )
        return PlainTextResponse(f"Success: LoRA adapter '{form.lora_name}' added successfully.")

    @router.post("/unload_lora_adapter", summary="As in vLLM: retire it")
    async def unload(form: UnloadLora, request: Request) -> PlainTextResponse:
        who = await operator(request)
        async with publisher.database.publish(alone=True) as session:
            service = CatalogService(session, who.project, datetime.now(UTC))
            rows = await service.retire(form.lora_name)
            await note_versions(session, who, "adapter.retired", rows, grace_s=None)
        return PlainTextResponse(f"Success: LoRA adapter '{form.lora_name}' removed successfully.")

    return router


async def _loaded(database: Database, who: Caller, name: str) -> bool:
    async with database.reading() as session:
        try:
            await CatalogService(session, who.project, datetime.now(UTC)).ready(name)
        except ResourceNotFound:
            return False
    return True
