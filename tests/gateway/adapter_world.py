"""The adapter API over a database and a store of its own, with keys of two tenants and an admin."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from adapters.stores import open_parts, open_store
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
from gateway.db import Database
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.health import Health
from gateway.http import Asgi
from gateway.identity.models import Role
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.inference.gate import Gate
from gateway.rest import rest_application
from gateway.snapshot import LiveSnapshot
from tests.adapters.builders import BASE, config, lora, write_adapter

NOW = datetime.now(UTC)
BASED = replace(BASE, names=("some/base",))


@dataclass
class World:
    http: httpx2.AsyncClient
    database: Database
    live: LiveSnapshot
    root: Path
    residents: Residents
    sweep: Sweep
    keys: dict[str, str]
    application: Asgi
    publisher: Publisher

    def auth(self, who: str = "acme") -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[who]}"}

    async def call(self, method: str, path: str, who: str = "acme", **more: object):
        return await self.http.request(method, path, headers=self.auth(who), **more)  # type: ignore[arg-type]

    async def push(self, name: str, folder: Path, who: str = "acme", **fields: str):
        files = [("files", (file.name, file.read_bytes())) for file in sorted(folder.iterdir())]  # noqa: ASYNC240
        return await self.call(
            "POST", "/v1/adapters", who, files=files, data={"name": name, **fields}
        )

    async def meaning(self, name: str, who: str = "acme", subject: str = "") -> str | None:
        await self.live.refresh()
        principal = self.live.authenticate(self.keys[who])
        target = self.live.resolve(principal, name, lambda: subject)
        return target.adapter.digest if target.adapter else None

    @property
    def leftovers(self) -> list[Path]:
        return [*(self.root / "uploads").glob("*"), *(self.root / "store/incoming").glob("*")]


@asynccontextmanager
async def opened(
    database: Database, root: Path, *, location: str = "", **limits: int
) -> AsyncIterator[World]:
    """``location``: of the adapter store, if it is not a directory in ``root``."""
    peppers = Peppers.load(None, root / "pepper")
    keys = {}
    async with database.publish() as session:
        service = IdentityService(session, NOW)
        for name in ("acme", "globex"):
            project = await service.create_project(name)
            keys[name] = service.issue(project, KeyTerms(), peppers=peppers).text
            narrow = KeyTerms(models=("bot",))
            keys[f"{name} narrow"] = service.issue(project, narrow, peppers=peppers).text
        owner = await service.organisation("default")
        keys["admin"] = service.issue_admin(owner, KeyTerms(), peppers=peppers).text
        keys["viewer"] = service.issue_admin(
            owner, KeyTerms(), peppers=peppers, role=Role.VIEWER
        ).text
    live = LiveSnapshot(database, peppers, base_model="base")
    await live.refresh()
    async with gateway(database, live, keys, root, location=location, **limits) as world:
        yield world


@asynccontextmanager
async def gateway(
    database: Database,
    live: LiveSnapshot,
    keys: dict[str, str],
    root: Path,
    *,
    location: str = "",
    **limits: int,
) -> AsyncIterator[World]:
    """One of several over a database, on a machine of its own."""
    fleet = Fleet(Static(()), gateway="test")
    place = location or root / "store"
    parts = open_parts(place, local=root / "uploads")
    staging = Staging(root / "uploads", parts, limits.get("max_bytes", 1 << 20))
    store = open_store(place, cache=root / "cache")
    quota = Quota(limits.get("adapters", 20), limits.get("bytes", 1 << 20))
    publisher = Publisher(
        database, staging, store, {"base": BASED}, Canary(fleet, (), enabled=False), quota=quota
    )
    residents = Residents(fleet, live)
    callers = Callers(Gate(live, open_to_this_machine=False), database)
    application = rest_application(
        Health(fleet, lambda: 0.0),
        base_model="base",
        is_open=False,
        routers=[
            adapter_router(callers, UploadDesk(publisher), AdapterDesk(publisher, residents)),
            vllm_router(callers, publisher),
        ],
    )
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        sweep = Sweep(database, staging, store, request_timeout_s=60)
        yield World(http, database, live, root, residents, sweep, keys, application, publisher)


def adapter(path: Path, seed: int = 0, **changes: object) -> Path:
    return write_adapter(path, config(**changes), lora(0, seed=seed) | lora(1, seed=seed))
