"""What a gateway was told to change counts for the very next request, not from the next poll on."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from gateway.app import create_app
from gateway.bootstrap import Access, ensure_demo
from gateway.config import Secret, Settings
from tests.adapters.builders import BASE, lora, write_adapter
from tests.gateway.serving import build_model_dir


@pytest.fixture
async def world(
    tmp_path: Path, database_url: str
) -> AsyncIterator[tuple[httpx2.AsyncClient, Access]]:
    settings = Settings(
        data_dir=tmp_path / "data",
        model_dir=build_model_dir(tmp_path / "model"),
        served_model_name="smol",
        engines=(f"unix:{tmp_path / 'nobody.sock'}",),
        database_url=Secret(database_url),
        epoch_poll_s=3600.0,
        adapter_canary=False,
    )
    settings.data_dir.mkdir()
    settings.base_spec_file.write_bytes(msgspec.json.encode(BASE))
    access = await ensure_demo(settings, {})
    application = create_app(settings)
    async with application.opened():
        transport = httpx2.ASGITransport(application)
        async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield http, access


async def test_a_version_an_alias_and_a_retirement_count_at_once(world, tmp_path):
    http, access = world
    auth = {"authorization": f"Bearer {access.tenants[0].api_key}"}

    async def models() -> list[str]:
        answer = await http.get("/v1/models", headers=auth)
        return [each["id"] for each in answer.json()["data"]]

    async def push(seed: int) -> None:
        folder = write_adapter(tmp_path / str(seed), tensors=lora(seed=seed))
        files = [("files", (file.name, file.read_bytes())) for file in folder.iterdir()]
        answer = await http.post("/v1/adapters", headers=auth, files=files, data={"name": "sql"})
        assert answer.status_code == 201, answer.text

    await push(1)
    assert await models() == ["smol", "sql"]
    answer = await http.get("/v1/models/sql@1", headers=auth)
    assert answer.status_code == 200
    path = "/v1/adapters/aliases/prod"
    assert (await http.put(path, headers=auth, json={"version": "sql@1"})).status_code == 200
    assert sorted(await models()) == ["prod", "smol", "sql"]
    await push(2)
    assert (await http.get("/v1/models/sql@2", headers=auth)).status_code == 200
    assert (await http.delete(path, headers=auth)).status_code == 204
    assert (await http.delete("/v1/adapters/sql", headers=auth)).status_code == 200
    assert await models() == ["smol"]
