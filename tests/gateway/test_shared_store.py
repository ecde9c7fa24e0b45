"""A gateway and an engine that share nothing but an S3 bucket."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from engine.config import Dtype
from engine.protocol import AdapterRef
from gateway.adapter_api import sweep as sweep_module
from gateway.adapter_api.canary import Canary
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from tests.engine.checkpoints import Shape, write_checkpoint
from tests.engine.live import LiveEngine
from tests.fakes.clock import until
from tests.gateway.adapter_world import adapter, opened
from tests.s3 import BUCKET, keys, s3, server

__all__ = ["s3", "server"]  # fixtures
URL = f"s3://{BUCKET}/shared"
# The base that the tests' small adapters are made for.
SHAPE = Shape(hidden=24, inner=40, layers=3, heads=4, kv_heads=2, head_dim=6, vocab=64, tied=True)


@pytest.fixture
def backend() -> str:
    return "sqlite"


async def test_what_is_uploaded_here_is_tried_and_served_there(s3, database, tmp_path):
    model = write_checkpoint(tmp_path / "model", SHAPE).path
    address = f"unix:{tmp_path / 'e.sock'}"
    async with opened(database, tmp_path / "data", location=URL) as world:
        told = (await world.push("support", adapter(tmp_path / "a"))).json()
        assert told["state"] == "ready"
        fleet = Fleet(Static((address,)), gateway="test")
        directory = str(tmp_path / "engine")
        # float32: the adapter moves so small a model by nats, of which bfloat16 loses a share.
        with LiveEngine(model, URL, address, data_dir=directory, dtype=Dtype.FLOAT32):
            connecting = asyncio.create_task(fleet.run())
            await until(lambda: fleet.ready)
            canary = Canary(fleet, list(range(3, 40)))
            tried = await canary.run(AdapterRef(told["digest"], told["rank"]))
            connecting.cancel()
        assert tried.effect_kl is not None
        assert tried.effect_kl > 1e-3
    assert not (tmp_path / "data" / "store").exists()


async def test_the_sweep_clears_the_bucket_of_what_no_version_names(
    s3, database, tmp_path, monkeypatch
):
    monkeypatch.setattr(sweep_module, "SETTLED", timedelta(seconds=-3600))  # all is old
    async with opened(database, tmp_path / "data", location=URL) as world:
        kept = (await world.push("kept", adapter(tmp_path / "a", 1))).json()
        gone = (await world.push("gone", adapter(tmp_path / "b", 2))).json()
        await world.call("DELETE", "/v1/adapters/gone")
        await world.sweep.once()
        assert len(keys(s3)) == 6  # requests from before may still run
        await world.sweep.once(datetime.now(UTC) + timedelta(hours=1))
        assert len(keys(s3)) == 3
        assert all(kept["digest"] in key and gone["digest"] not in key for key in keys(s3))


async def test_a_store_that_is_away_loses_no_upload(s3, database, tmp_path, monkeypatch):
    async with opened(database, tmp_path / "data", location=URL) as world:
        began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "a"})).json()
        path = f"/v1/adapters/uploads/{began['id']}"
        for file in adapter(tmp_path / "a").iterdir():
            await world.http.put(
                f"{path}/{file.name}/1", content=file.read_bytes(), headers=world.auth()
            )
        names = keys(s3)
        s3.delete_bucket(Bucket=BUCKET)
        answer = await world.call("POST", f"{path}/complete", json={})
        s3.create_bucket(Bucket=BUCKET)
        assert (answer.status_code, names) == (503, [])
        assert (await world.call("GET", path)).json()["state"] == "uploading"
        answer = await world.call("POST", f"{path}/complete", json={})
        assert (answer.status_code, answer.json()["state"]) == (200, "ready")
        assert world.leftovers == []
