"""The tenants a server starts with: made at the first start, found again at every other.

Their keys are remembered in ``keys.json`` in the data directory (mode 0600), for they are shown
at each start. A key that was revoked or expired meanwhile is replaced.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.errors import StoreUnusable
from adapters.stores import open_store
from gateway.catalog.intake import Intake, read_base
from gateway.catalog.repository import AdapterRepository
from gateway.catalog.service import CatalogService
from gateway.config import ConfigError, Settings
from gateway.db import Database
from gateway.errors import ResourceNotFound, Unauthenticated
from gateway.identity.demo_people import DemoPeople
from gateway.identity.directory import KeyDirectory
from gateway.identity.models import Project, Role
from gateway.identity.passwords import Passwords
from gateway.identity.pepper import Peppers
from gateway.identity.service import DEFAULT_ORGANISATION, IdentityService, KeyTerms
from gateway.snapshot import LiveSnapshot
from gateway.usage.service import PriceList
from migrations import runner

KEYS_FILE = "keys.json"
DEMO_PRICES = ("0.05", "0.005", "0.20")  # dollars per million input, cached and output tokens

Wanted = Mapping[str, Mapping[str, Path]]  # tenant -> adapter name -> its directory


# Who signs in to the demo's dashboard -> what they may do; None: the operator.
DEMO_LOGINS: Mapping[str, Role | None] = {
    "operator@demo": None,
    "owner@demo": Role.OWNER,
    "viewer@demo": Role.VIEWER,
    "billing@demo": Role.BILLING,
}


class RememberedKeys(msgspec.Struct, frozen=True):
    admin: str = ""
    tenants: dict[str, str] = {}
    logins: dict[str, str] = {}  # address -> password


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    name: str
    api_key: str = field(repr=False)
    models: list[str]  # public names it may use, the base first


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLogin:
    email: str
    password: str = field(repr=False)
    may: str  # "operator", or a role in the organisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    admin_key: str = field(repr=False)
    tenants: list[Tenant]  # in the order asked for
    logins: list[DemoLogin] = field(default_factory=list)


async def ensure_demo(settings: Settings, adapters: Mapping[str, Path]) -> Access:
    """Two tenants: ``acme`` owns all adapters but the last, ``globex`` the last. With prices."""
    names = list(adapters)
    wanted = {
        "acme": {name: adapters[name] for name in names[:-1]},
        "globex": {name: adapters[name] for name in names[-1:]},
    }
    return await ensure_tenants(settings, wanted, prices=DEMO_PRICES, logins=DEMO_LOGINS)


async def ensure_tenants(
    settings: Settings,
    wanted: Wanted,
    *,
    prices: tuple[str, str, str] | None = None,
    logins: Mapping[str, Role | None] | None = None,
) -> Access:
    """Migrate the database; make what is missing; change nothing that is there.

    Adapters are checked against ``settings.base_spec_file``. ``prices`` is set for the base if it
    has none. Raises ConfigError, DatabaseUnavailable, or a GatewayError that says which adapter
    does not fit and why.
    """
    try:
        store = open_store(settings.adapter_store, cache=settings.adapter_cache)
    except StoreUnusable as error:
        raise ConfigError(str(error)) from error
    intake = Intake(read_base(settings.base_spec_file), store)
    database = Database(settings.database)
    try:
        await runner.upgrade(database)
        start = _Start(settings, database, intake)
        return await start.ensure(wanted, prices, logins or {})
    finally:
        await database.close()


class _Start:
    def __init__(self, settings: Settings, database: Database, intake: Intake) -> None:
        self._settings = settings
        self._database = database
        self._intake = intake
        self._peppers = Peppers.load(settings.pepper, settings.pepper_file)
        self._file = settings.data_dir / KEYS_FILE
        self._now = datetime.now(UTC)

    async def ensure(
        self,
        wanted: Wanted,
        prices: tuple[str, str, str] | None,
        logins: Mapping[str, Role | None],
    ) -> Access:
        remembered = _read_keys(self._file)
        live = LiveSnapshot(
            self._database, self._peppers, base_model=self._settings.served_model_name
        )
        await live.refresh()
        valid = live.current.keys
        async with self._database.publish() as session:
            keys = await self._ensure_keys(session, wanted, remembered, valid)
            people = DemoPeople(session, self._now, Passwords())
            passwords = await people.ensure(logins, remembered.logins)
            keys = msgspec.structs.replace(keys, logins=passwords)
            if prices is not None:
                await PriceList(session, self._now).ensure(self._settings.served_model_name, prices)
        if keys != remembered:
            _write_keys(self._file, keys)
        await live.refresh()
        return Access(
            admin_key=keys.admin,
            tenants=[
                Tenant(
                    name=name,
                    api_key=keys.tenants[name],
                    models=[
                        target.public_name
                        for target in live.models(live.authenticate(keys.tenants[name]))
                    ],
                )
                for name in wanted
            ],
            logins=[
                DemoLogin(email=email, password=keys.logins[email], may=str(role or "operator"))
                for email, role in logins.items()
            ],
        )

    async def _ensure_keys(
        self,
        session: AsyncSession,
        wanted: Wanted,
        remembered: RememberedKeys,
        valid: KeyDirectory,
    ) -> RememberedKeys:
        service = IdentityService(session, self._now)
        tenants = dict(remembered.tenants)
        for name, adapters in wanted.items():
            project = await self._ensure_project(service, name)
            if self._holder(valid, tenants.get(name, "")) != project.id:
                tenants[name] = service.issue(
                    project,
                    KeyTerms(),
                    peppers=self._peppers,
                    environment=self._settings.key_environment,
                ).text
            await self._ensure_adapters(session, project, adapters)
        admin = remembered.admin
        if self._holder(valid, admin) is None:
            organisation = await service.organisation(DEFAULT_ORGANISATION, create=True)
            admin = service.issue_admin(organisation, KeyTerms(), peppers=self._peppers).text
        return RememberedKeys(admin, tenants, remembered.logins)

    async def _ensure_project(self, service: IdentityService, name: str) -> Project:
        try:
            return await service.project(f"{DEFAULT_ORGANISATION}/{name}")
        except ResourceNotFound:
            return await service.create_project(name)

    async def _ensure_adapters(
        self, session: AsyncSession, project: Project, adapters: Mapping[str, Path]
    ) -> None:
        catalog = CatalogService(session, project.id, self._now)
        for name, folder in adapters.items():
            if name == self._settings.served_model_name:
                raise ConfigError(f"adapter {name!r}: the name belongs to the base model")
            adapter, facts = await asyncio.to_thread(self._intake.admit, folder)
            versions = await AdapterRepository(session, project.id).versions(name)
            ready = [row for row in versions if row.retired_at is None]
            if not ready or ready[-1].digest != adapter.digest:
                await catalog.publish(name, adapter, facts)

    def _holder(self, valid: KeyDirectory, key: str) -> str | None:
        """The project of a key ("" for an admin key); None if it does not work."""
        try:
            return valid.authenticate(key, self._now.timestamp()).project
        except Unauthenticated:
            return None


def _read_keys(file: Path) -> RememberedKeys:
    try:
        return msgspec.json.decode(file.read_bytes(), type=RememberedKeys)
    except FileNotFoundError:
        return RememberedKeys()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); remove it for new keys") from error


def _write_keys(file: Path, keys: RememberedKeys) -> None:
    draft = file.with_name(f".{file.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(keys)))
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
