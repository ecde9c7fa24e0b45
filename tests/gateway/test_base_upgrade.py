"""Two bases side by side: each adapter stays with its own, and an alias moves between them."""

import asyncio
import contextlib
import dataclasses
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import msgspec
import pytest
from sqlalchemy import text

from gateway.app import create_app
from gateway.bootstrap import ensure_tenants
from gateway.config import ConfigError, OtherBase, Secret, Settings
from gateway.db import Database, DatabaseUnavailable
from gateway.inference.tokenizer import Tokenizer
from tests.adapters.builders import BASE, lora, write_adapter
from tests.fakes.clock import until
from tests.fakes.engine import BASE as FAKE_BASE
from tests.fakes.engine import FakeEngine, Knobs
from tests.gateway.serving import build_model_dir

OLD, NEW = replace(BASE, fingerprint="a" * 64), replace(BASE, fingerprint="b" * 64)
MARK = "{{ messages[-1].content }} Hello, world!"  # the new base's template


@dataclass
class World:
    http: httpx2.AsyncClient
    key: str
    old: FakeEngine
    new: FakeEngine
    settings: Settings

    async def call(self, method: str, path: str, **more: object):
        headers = {"authorization": f"Bearer {self.key}"}
        return await self.http.request(method, path, headers=headers, **more)  # type: ignore[arg-type]

    async def ask(self, model: str, user: str = "u"):
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "user": user}
        return await self.call("POST", "/v1/chat/completions", json=body | {"max_tokens": 3})

    async def push(self, folder: Path, **fields: str):
        files = [("files", (file.name, file.read_bytes())) for file in folder.iterdir()]  # noqa: ASYNC240
        return await self.call("POST", "/v1/adapters", files=files, data={"name": "sql"} | fields)

    @property
    def asked(self) -> tuple[int, int]:
        return len(self.old.submitted), len(self.new.submitted)


def settings_in(folder: Path, *engines: FakeEngine) -> Settings:
    old = build_model_dir(folder / "old")
    new = Path(shutil.copytree(old, folder / "new"))
    config = json.loads((new / "tokenizer_config.json").read_text())
    (new / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": MARK}))
    (folder / "new.json").write_bytes(msgspec.json.encode(NEW))
    settings = Settings(
        data_dir=folder / "data",
        model_dir=old,
        served_model_name="old",
        other_bases=(OtherBase(name="new", model_dir=new, spec_file=folder / "new.json"),),
        engines=tuple(engine.address for engine in engines),
        adapter_canary=False,
    )
    settings.data_dir.mkdir(exist_ok=True)
    settings.base_spec_file.write_bytes(msgspec.json.encode(OLD))
    return Settings.from_json(settings.to_json())


@asynccontextmanager
async def served(settings: Settings, key: str, old: FakeEngine, new: FakeEngine):
    application = create_app(settings)
    # On SQLite a task that is cut off while it writes may leave the file locked; what is then not
    # settled is settled at the next start.
    with contextlib.suppress(DatabaseUnavailable):
        async with application.opened():
            await until(lambda: all(m.client for m in application._fleet.members))
            transport = httpx2.ASGITransport(application)
            async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
                yield World(http, key, old, new, settings)


@pytest.fixture
async def world(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[World]:
    bases = [
        msgspec.structs.replace(FAKE_BASE, fingerprint=spec.fingerprint) for spec in (OLD, NEW)
    ]
    say = Knobs(script=lambda submit: [70, 71, 72])
    async with (
        FakeEngine(f"unix:{tmp_path}/old.sock", base=bases[0], knobs=say) as old,
        FakeEngine(f"unix:{tmp_path}/new.sock", base=bases[1], knobs=say) as new,
    ):
        settings = settings_in(tmp_path, old, new)
        shutil.copy(migrated_sqlite, settings.data_dir / "loratorio.db")
        access = await ensure_tenants(settings, {"acme": {}})
        async with served(settings, access.tenants[0].api_key, old, new) as world:
            yield world


async def published(world: World, folder: Path) -> list[str]:
    """Digests of sql@1, for the old base, and sql@2, for the new one."""
    digests = []
    for number, base in enumerate(("old", "new")):
        files = write_adapter(folder / base, tensors=lora(seed=number))
        answer = await world.push(files, base_model=base)
        assert answer.status_code == 201, answer.text
        digests.append(answer.json()["digest"])
    return digests


async def test_each_base_is_read_by_its_own_files_and_run_by_its_own_engine(world):
    listed = (await world.call("GET", "/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["old", "new"]
    for name, count in (("old", (1, 0)), ("new", (1, 1))):
        answer = await world.ask(name)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
        assert world.asked == count
    words = Tokenizer.load(world.settings.other_bases[0].model_dir)
    prompts = [
        b"".join(map(words.bytes_of, engine.submitted[0].tokens)).decode()
        for engine in (world.old, world.new)
    ]
    assert "Hello, world!" in prompts[1]
    assert "Hello, world!" not in prompts[0]
    counted = await world.call("POST", "/tokenize", json={"model": "new", "prompt": "Hi"})
    assert counted.status_code == 200


async def test_an_adapter_is_bound_to_the_base_it_names(world, tmp_path):
    first, second = await published(world, tmp_path / "adapters")
    for model, digest, engine in (("sql@1", first, world.old), ("sql@2", second, world.new)):
        before = len(engine.submitted)
        assert (await world.ask(model)).status_code == 200
        assert len(engine.submitted) == before + 1
        assert engine.submitted[-1].adapter.digest == digest
    versions = (await world.call("GET", "/v1/adapters/sql")).json()["versions"]
    assert [each["base_fingerprint"][0] for each in versions] == ["a", "b"]


async def test_one_that_fits_several_bases_must_say_which(world, tmp_path):
    files = write_adapter(tmp_path / "adapter")
    answer = await world.push(files)
    assert answer.status_code == 422
    assert "say with base_model which it is for" in answer.json()["error"]["message"]
    answer = await world.push(files, base_model="newer")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "base_model")
    assert "'newer' is not served here; served are old, new" in answer.json()["error"]["message"]
    answer = await world.push(files, base_model="old", base_fingerprint="b" * 64)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "base_fingerprint")
    answer = await world.push(files, base_fingerprint="b" * 64)
    assert answer.status_code == 201


async def test_an_alias_moves_to_another_base_at_once_and_back(world, tmp_path):
    digests = await published(world, tmp_path / "adapters")
    path, engines = "/v1/adapters/aliases/prod", (world.old, world.new)

    async def moved(version: str) -> None:
        assert (await world.call("PUT", path, json={"version": version})).status_code == 200

    await moved("sql@1")
    assert (await world.ask("prod")).status_code == 200
    assert world.asked == (1, 0)
    await moved("sql@2")
    assert (await world.ask("prod")).status_code == 200  # the very next one
    assert world.asked == (1, 1)
    assert (await world.call("POST", f"{path}/rollback")).status_code == 200
    assert (await world.ask("prod")).status_code == 200
    assert world.asked == (2, 1)
    asking = [asyncio.create_task(world.ask("prod", str(i))) for i in range(20)]
    await asyncio.sleep(0)
    await moved("sql@2")
    assert {(await task).status_code for task in asking} == {200}
    for engine, digest in zip(engines, digests, strict=True):  # none with another base's adapter
        assert {submit.adapter.digest for submit in engine.submitted} == {digest}


async def test_a_canary_of_another_base_gets_its_share(world, tmp_path):
    await published(world, tmp_path / "adapters")
    share = {"version": "sql@1", "canary": {"version": "sql@2", "percent": 50}}
    answer = await world.call("PUT", "/v1/adapters/aliases/prod", json=share)
    assert answer.status_code == 200, answer.text
    users = [str(number) for number in range(40)]
    for user in users:
        assert (await world.ask("prod", user)).status_code == 200
    assert min(world.asked) > 8
    before = world.asked
    for user in users:  # each user stays where it was
        await world.ask("prod", user)
    assert world.asked == tuple(2 * count for count in before)


async def test_each_base_is_billed_under_its_name(world, tmp_path):
    await published(world, tmp_path / "adapters")
    for model in ("sql@1", "sql@2", "sql@2"):
        await world.ask(model)
    database = Database(world.settings.database)
    query = text("SELECT base_model, count(*) FROM usage_event GROUP BY base_model")
    found: dict[str, int] = {}
    async with asyncio.timeout(5):
        while found != {"old": 1, "new": 2}:
            await asyncio.sleep(0.05)
            async with database.reading() as session:
                found = {row[0]: row[1] for row in await session.execute(query)}
    await database.close()


async def test_a_base_without_engines_fails_alone(world):
    world.new._server.close()
    world.new.die()
    async with asyncio.timeout(5):
        while (await world.ask("new")).status_code == 200:
            await asyncio.sleep(0.01)
    answer = await world.ask("new")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
    assert (await world.ask("old")).status_code == 200


async def test_what_was_published_for_a_base_that_is_gone_is_said_and_not_listed(world, tmp_path):
    await published(world, tmp_path / "adapters")
    folder = tmp_path / "later"
    folder.mkdir()
    shutil.copy(world.settings.pepper_file, folder / "pepper")
    later = dataclasses.replace(
        world.settings,
        data_dir=folder,
        database_url=Secret(world.settings.database),
        model_dir=world.settings.other_bases[0].model_dir,
        served_model_name="new",
        other_bases=(),
        engines=(world.new.address,),
    )
    later.base_spec_file.write_bytes(msgspec.json.encode(NEW))
    async with served(later, world.key, world.old, world.new) as upgraded:
        answer = await upgraded.ask("sql@1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "base_not_served")
        listed = (await upgraded.call("GET", "/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["new", "sql"]
        assert (await upgraded.ask("sql")).status_code == 200


def test_bases_that_cannot_be_told_apart_are_refused(tmp_path):
    settings = settings_in(tmp_path, FakeEngine("unix:nobody"))
    (tmp_path / "new.json").write_bytes(msgspec.json.encode(OLD))
    with pytest.raises(ConfigError, match="'new' and 'old' are the same model"):
        create_app(settings)
    (tmp_path / "new.json").unlink()
    with pytest.raises(ConfigError, match="is not known"):
        create_app(settings)
    with pytest.raises(ConfigError, match="the name 'old' is another base's"):
        dataclasses.replace(settings, other_bases=(OtherBase(name="old", model_dir=tmp_path),))
