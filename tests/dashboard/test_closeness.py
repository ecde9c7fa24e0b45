"""An adapter version's page: where it is, how often it came and went, and how fast it answered."""

from datetime import UTC, datetime

import pytest_asyncio

from engine.metrics import EngineMetrics
from engine.observer import Tier
from engine.protocol import AdapterRef
from gateway.catalog.service import CatalogService, Facts
from gateway.dashboard.closeness import read
from gateway.usage.event import slot_of
from gateway.usage.pace import FIRST, TOKEN, Place, step_of
from gateway.usage.pace_repository import PaceRepository
from tests.dashboard.browser import ON_THE_SESSIONS_LOOP, audit

pytestmark = ON_THE_SESSIONS_LOOP
DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def version(served):
    """A version with a name, that was asked for a hundred times this month."""
    world, now = served.world, datetime.now(UTC)
    project = world.projects["acme/batch"]
    async with world.database.publish() as session:
        catalog = CatalogService(session, project, now)
        row = await catalog.publish("swift", AdapterRef(DIGEST, 8), Facts(nbytes=1 << 20))
        await session.flush()
        await catalog.set_alias("fast", "swift@1")
        where = slot_of(int(now.timestamp()) * 10**9), project, "fast"
        owner = world.organisations["acme"]
        await PaceRepository(session).add({
            Place(*where, "completed", 0, owner): 100,
            Place(*where, FIRST, step_of(200_000_000), owner): 100,
            Place(*where, TOKEN, step_of(20_000_000), owner): 100,
        })  # fmt: skip
    return row


async def test_what_an_engine_says_of_one_adapter_is_read():
    metrics = EngineMetrics(9)
    for seconds in (0.5, 1.5):
        metrics.loaded(DIGEST, seconds, Tier.DISK)
    metrics.loaded(OTHER, 9.0, Tier.DISK)
    metrics.evicted(DIGEST)
    found = read(1, True, metrics.text(), DIGEST)
    assert (found.loads, found.load_s, found.evicted) == (2, 1.0, 1)
    assert read(2, False, metrics.text(), f"sha256:{'c' * 64}").loads is None
    assert read(3, False, "", DIGEST).loads is None


async def test_a_version_tells_its_engines_and_its_speed_by_name(served, browser, version):
    address = f"/adapters?project={version.project_id}&version={version.id}"
    async with browser.page("viewer", address) as page:
        await browser.shoot(page, "adapter-version")
        assert "no" in await page.inner_text("[data-engine='1']")
        line = await page.inner_text("[data-speed=fast]")
        assert "100" in line
        assert "ms" in line
        assert await audit(page) == []
