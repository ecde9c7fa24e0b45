"""A key that is revoked stops on every gateway within a second, with Redis and without."""

import asyncio
import dataclasses
import shutil
import time
from datetime import UTC, datetime

import pytest

from gateway.identity.service import IdentityService
from tests.e2e.server import free_ports
from tests.faults.rig import running
from tests.isolation.tenants import Caller
from tests.services import Postgres
from tests.stack import Program

pytestmark = pytest.mark.slow


async def test_a_revoked_key_stops_on_two_gateways_within_a_second(tmp_path, postgres: Postgres):
    url = await asyncio.to_thread(postgres.create)
    async with running(tmp_path, database_url=url) as rig, rig.database() as database:
        port, metrics_port = free_ports(2)
        second = dataclasses.replace(
            rig.settings,
            data_dir=tmp_path / "second",
            port=port,
            metrics_port=metrics_port,
        )
        second.data_dir.mkdir()
        shutil.copy(rig.settings.pepper_file, second.pepper_file)
        file = tmp_path / "second.json"
        file.write_bytes(second.to_json())
        other = Program("gateway", ("-m", "gateway", "serve", "--settings", str(file)))
        callers = [Caller(f"http://127.0.0.1:{s.port}") for s in (rig.settings, second)]

        async def status(caller: Caller) -> int:
            try:
                return (await caller.send("GET", "/v1/models", rig.key)).status_code
            except OSError:
                return 0
            except Exception as error:  # the client has its own word for a refused connection
                if "Connect" not in type(error).__name__:
                    raise
                return 0

        async def both(wanted: int) -> bool:
            return [await status(caller) for caller in callers] == [wanted, wanted]

        await rig.start(other)
        try:
            await rig.eventually(lambda: both(200), "both gateways serve")
            async with database.publish() as session:
                name = f"key_{rig.key.split('-')[2]}"
                await IdentityService(session, datetime.now(UTC)).revoke(name)
            began = time.monotonic()
            await rig.eventually(lambda: both(401), "both refuse the key")
            assert time.monotonic() - began < 1.0
        finally:
            await other.end()
