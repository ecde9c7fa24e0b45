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
from tests.gateway.adapter_world import adapter, gateway, opened
from tests.s3 import BUCKET, keys, s3, server

pytestmark = pytest.mark.slow

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
            tried = await canary.run(AdapterRef(told["digest"], told["rank"]), "")
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


async def begun(world, name: str = "a") -> str:
    answer = await world.call("POST", "/v1/adapters/uploads", json={"name": name})
    return f"/v1/adapters/uploads/{answer.json()['id']}"


async def send(world, path: str, file, part: int, content: bytes) -> int:
    place = f"{path}/{file.name}/{part}"
    return (await world.http.put(place, content=content, headers=world.auth())).status_code


def emptied(s3) -> dict[str, bytes]:
    """What the bucket held."""
    held = {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys(s3)}
    for key in held:
        s3.delete_object(Bucket=BUCKET, Key=key)
    return held


async def test_parts_of_one_upload_reach_several_gateways(s3, database, tmp_path):
    """The first part goes here, the second there, and a third machine puts them together."""
    config, weights = sorted(adapter(tmp_path / "a").iterdir())
    half = len(weights.read_bytes()) // 2
    async with opened(database, tmp_path / "one", location=URL) as one:
        more = [
            gateway(database, one.live, one.keys, tmp_path / name, location=URL)
            for name in ("two", "three")
        ]
        async with more[0] as two, more[1] as three:
            path = await begun(one)
            assert await send(one, path, weights, 2, weights.read_bytes()[half:]) == 200
            assert await send(two, path, weights, 1, b"sent again, elsewhere") == 200
            assert await send(three, path, weights, 1, weights.read_bytes()[:half]) == 200
            assert await send(two, path, config, 1, config.read_bytes()) == 200
            told = (await one.call("GET", path)).json()
            assert len(told["files"][weights.name]) == 2, told
            done = await two.call("POST", f"{path}/complete", json={})
            assert (done.status_code, done.json()["state"]) == (200, "ready")
            assert await send(one, path, config, 1, b"{}") == 409
            for world in (one, two, three):
                assert world.leftovers == []
            assert not [key for key in keys(s3) if "uploads" in key]


async def test_a_part_that_comes_as_its_upload_is_given_up_elsewhere_is_not_kept(
    s3, database, tmp_path
):
    (config, _) = sorted(adapter(tmp_path / "a").iterdir())
    async with opened(database, tmp_path / "one", location=URL) as one:
        beside = gateway(database, one.live, one.keys, tmp_path / "two", location=URL)
        async with beside as two:
            path = await begun(one)
            started, gone = asyncio.Event(), asyncio.Event()

            async def slowly():
                started.set()
                await gone.wait()
                yield config.read_bytes()

            place = f"{path}/{config.name}/1"
            sending = asyncio.create_task(two.http.put(place, content=slowly(), headers=two.auth()))
            await asyncio.wait_for(started.wait(), 5)
            assert (await one.call("DELETE", path)).status_code == 204
            gone.set()
            assert (await sending).status_code == 404
            assert (keys(s3), one.leftovers, two.leftovers) == ([], [], [])


async def test_the_sweep_clears_the_bucket_of_parts_nobody_knows(
    s3, database, tmp_path, monkeypatch
):
    monkeypatch.setattr(sweep_module, "FORGOTTEN", timedelta(seconds=-3600))  # all is old
    config, _ = sorted(adapter(tmp_path / "a").iterdir())
    async with opened(database, tmp_path / "data", location=URL) as world:
        path = await begun(world)
        assert await send(world, path, config, 1, config.read_bytes()) == 200
        s3.put_object(Bucket=BUCKET, Key=f"shared/uploads/upl_{'0' * 32}/x.1", Body=b"")
        await world.sweep.once(datetime.now(UTC) - timedelta(days=1))
        assert [key.split("/")[-2] for key in keys(s3)] == [path.rpartition("/")[2]]


async def test_a_store_that_is_away_loses_no_upload(s3, database, tmp_path):
    async with opened(database, tmp_path / "data", location=URL) as world:
        path = await begun(world)
        files = sorted(adapter(tmp_path / "a").iterdir())
        for file in files:
            assert await send(world, path, file, 1, file.read_bytes()) == 200
        held = emptied(s3)
        s3.delete_bucket(Bucket=BUCKET)
        answer = await world.call("POST", f"{path}/complete", json={})
        assert answer.status_code == 503
        assert await send(world, path, files[0], 1, files[0].read_bytes()) == 503
        s3.create_bucket(Bucket=BUCKET)
        for key, body in held.items():
            s3.put_object(Bucket=BUCKET, Key=key, Body=body)
        assert (await world.call("GET", path)).json()["state"] == "uploading"
        answer = await world.call("POST", f"{path}/complete", json={})
        assert (answer.status_code, answer.json()["state"]) == (200, "ready")
        assert world.leftovers == []
