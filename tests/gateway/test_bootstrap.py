"""The tenants a server starts with are made once and found again."""

import stat
from datetime import UTC, datetime

import msgspec
import pytest

from gateway.bootstrap import KEYS_FILE, ensure_demo, ensure_tenants
from gateway.config import ConfigError, Secret, Settings
from gateway.db import Database
from gateway.errors import InvalidRequest, ResourceNotFound
from gateway.identity.logins import Logins
from gateway.identity.passwords import Passwords
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService
from gateway.snapshot import LiveSnapshot
from gateway.usage.repository import LedgerRepository
from tests.adapters.builders import BASE, lora, write_adapter


@pytest.fixture
def settings(tmp_path, database_url) -> Settings:
    settings = Settings(
        data_dir=tmp_path / "data",
        model_dir=tmp_path / "model",
        served_model_name="smol",
        engines=("unix:/run/e.sock",),
        database_url=Secret(database_url),
    )
    settings.data_dir.mkdir()
    settings.base_spec_file.write_bytes(msgspec.json.encode(BASE))
    return settings


@pytest.fixture
def adapters(tmp_path):
    return {
        name: write_adapter(tmp_path / name, tensors=lora(seed=seed))
        for seed, name in enumerate(("json", "pirate", "terse"))
    }


async def test_the_demo_has_two_tenants_and_an_admin_key(settings, adapters):
    access = await ensure_demo(settings, adapters)
    acme, globex = access.tenants
    assert (acme.name, acme.models) == ("acme", ["smol", "json", "pirate"])
    assert (globex.name, globex.models) == ("globex", ["smol", "terse"])
    assert access.admin_key.startswith("sk-admin-")
    database = Database(settings.database)
    live = LiveSnapshot(database, Peppers.load(None, settings.pepper_file), base_model="smol")
    await live.refresh()
    assert live.authenticate(acme.api_key).project_name == "acme"
    assert live.authenticate(access.admin_key).admin
    async with database.reading() as session:
        assert len(await LedgerRepository(session).prices()) == 1
    await database.close()


async def test_the_demo_has_people_who_can_sign_in(settings, adapters):
    access = await ensure_demo(settings, adapters)
    assert [each.may for each in access.logins] == ["operator", "owner", "viewer", "billing"]
    assert len({each.password for each in access.logins}) == 4
    database = Database(settings.database)
    logins = Logins(database, Passwords())
    for each in access.logins:
        cookie = await logins.sign_in(each.email, each.password, address="", browser="")
        viewer = await logins.viewer(cookie)
        assert viewer is not None
        assert (viewer.email, str(viewer.role or "operator")) == (each.email, each.may)
    await database.close()


async def test_the_second_start_finds_everything_again(settings, adapters):
    first = await ensure_demo(settings, adapters)
    assert await ensure_demo(settings, adapters) == first
    assert stat.S_IMODE((settings.data_dir / KEYS_FILE).stat().st_mode) == 0o600


async def test_a_changed_adapter_becomes_the_next_version(settings, adapters):
    await ensure_demo(settings, adapters)
    write_adapter(adapters["terse"], tensors=lora(seed=9))
    await ensure_demo(settings, adapters)
    database = Database(settings.database)
    live = LiveSnapshot(database, Peppers.load(None, settings.pepper_file), base_model="smol")
    await live.refresh()
    globex = live.current.keys.any_of("globex", 0)
    assert live.resolve(globex, "terse").adapter == live.resolve(globex, "terse@2").adapter
    assert live.resolve(globex, "terse").adapter != live.resolve(globex, "terse@1").adapter
    await database.close()


async def test_a_revoked_key_is_replaced_and_the_others_stay(settings, adapters):
    first = await ensure_demo(settings, adapters)
    database = Database(settings.database)
    async with database.publish() as session:
        public = first.tenants[0].api_key.split("-")[2]
        service = IdentityService(session, first_day())
        await service.revoke(f"key_{public}")
    await database.close()
    second = await ensure_demo(settings, adapters)
    assert second.tenants[0].api_key != first.tenants[0].api_key
    assert second.tenants[1] == first.tenants[1]
    assert second.admin_key == first.admin_key


def first_day() -> datetime:
    return datetime(2026, 11, 30, tzinfo=UTC)


async def test_no_repr_shows_a_key(settings):
    access = await ensure_tenants(settings, {"default": {}})
    assert access.admin_key not in repr(access)
    assert access.tenants[0].api_key not in repr(access)


async def test_what_cannot_be_served_says_so(settings, adapters):
    with pytest.raises(ConfigError, match="belongs to the base"):
        await ensure_tenants(settings, {"default": {"smol": adapters["json"]}})
    with pytest.raises(InvalidRequest, match="no such directory"):
        await ensure_tenants(settings, {"default": {"x": settings.data_dir / "nothing"}})
    settings.base_spec_file.unlink()
    with pytest.raises(ResourceNotFound):
        await ensure_tenants(settings, {"default": {}})
