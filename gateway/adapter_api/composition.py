"""Adapters put together: where they lie, who may send them, and what sweeps up behind."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from adapters.base_spec import BaseSpec
from adapters.errors import StoreUnusable
from adapters.stores import Store, open_parts, open_store
from gateway.adapter_api.callers import Callers
from gateway.adapter_api.canary import Canary
from gateway.adapter_api.desk import AdapterDesk
from gateway.adapter_api.publisher import Publisher
from gateway.adapter_api.residents import Residents
from gateway.adapter_api.routes import adapter_router
from gateway.adapter_api.staging import Staging
from gateway.adapter_api.sweep import Sweep
from gateway.adapter_api.uploads import UploadDesk
from gateway.adapter_api.vllm import vllm_router
from gateway.catalog.service import Quota
from gateway.config import ConfigError, Settings
from gateway.db import Database
from gateway.fleet.fleet import Fleet
from gateway.inference.gate import Gate


class Uploading:
    """What a gateway needs to take adapters."""

    def __init__(
        self,
        settings: Settings,
        specs: Mapping[str, BaseSpec],
        database: Database,
        fleet: Fleet,
        gate: Gate,
        residents: Residents,
        *,
        probe: Sequence[int],
    ) -> None:
        """``specs``: of the bases, by served name; ``probe``: a prompt that a new adapter is tried
        on. Raises ConfigError."""
        store = _store(settings)
        parts = open_parts(settings.adapter_store, local=settings.upload_dir)
        staging = Staging(settings.upload_dir, parts, settings.max_adapter_bytes)
        publisher = Publisher(
            database,
            staging,
            store,
            specs,
            Canary(fleet, probe, enabled=settings.adapter_canary),
            quota=Quota(settings.adapters_per_tenant, settings.adapter_bytes_per_tenant),
        )
        callers = Callers(gate, database)
        self._sweep = Sweep(database, staging, store, request_timeout_s=settings.request_timeout_s)
        self.uploads = UploadDesk(publisher)
        self.routers: list[APIRouter] = [
            adapter_router(callers, self.uploads, AdapterDesk(publisher, residents)),
            vllm_router(callers, publisher),
        ]

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"sweep": self._sweep.run()}


def _store(settings: Settings) -> Store:
    try:
        return open_store(
            settings.adapter_store,
            cache=settings.adapter_cache,
            max_bytes=settings.max_adapter_bytes,
        )
    except StoreUnusable as error:
        raise ConfigError(f"adapter_store_url: {error}") from error
