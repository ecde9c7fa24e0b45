"""/healthz says that we run, /readyz whether a request sent here would be answered."""

from tests.fakes.clock import until
from tests.gateway.serving import ask, serving


def get(path):
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()


async def test_ready_follows_the_engine_and_alive_does_not(tmp_path):
    async with serving(tmp_path) as server:
        ready = await ask(server.port, get("/readyz"))
        assert ready.status == 200
        assert ready.json["engines"] == [{"engine": 0, "up": True, "state": "up"}]
        server.engine._server.close()
        server.engine.die()
        await until(lambda: not server.health.ready)
        gone = await ask(server.port, get("/readyz"))
        assert (gone.status, gone.json["engines"][0]["state"]) == (503, "unreachable")
        assert (await ask(server.port, get("/healthz"))).status == 200


async def test_an_old_view_of_the_database_is_not_ready(tmp_path):
    age = [0.0]
    async with serving(tmp_path, snapshot_age=age) as server:
        assert (await ask(server.port, get("/readyz"))).status == 200
        age[0] = 3600.0
        got = await ask(server.port, get("/readyz"))
        assert (got.status, got.json["snapshot_age_seconds"]) == (503, 3600.0)


async def test_a_gateway_that_is_stopping_is_not_ready(tmp_path):
    async with serving(tmp_path) as server:
        server.health.stopping = True
        assert (await ask(server.port, get("/readyz"))).status == 503


async def test_an_engine_that_comes_back_is_used_again(tmp_path):
    async with serving(tmp_path) as server:
        server.engine.die()
        await until(lambda: not server.health.ready)
        await until(lambda: server.health.ready)
        assert (await ask(server.port, get("/readyz"))).status == 200


async def test_a_disk_that_takes_no_usage_is_not_ready_and_lost_limits_are_told(tmp_path):
    async with serving(tmp_path) as server:
        server.health._shared_limits = lambda: False
        got = await ask(server.port, get("/readyz"))
        assert got.status == 200
        assert got.json["limits"].startswith("degraded: a local share")
        server.health._records = lambda: False
        got = await ask(server.port, get("/readyz"))
        assert (got.status, got.json["usage_log"]) == (503, "refused by the disk")
