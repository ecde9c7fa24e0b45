"""Official clients of two organisations' administrators, over each database."""

from datetime import UTC, datetime

import httpx2
import pytest
from openai import AsyncOpenAI

from gateway.admin.desk import AdminDesk
from gateway.admin.routes import admin_router
from gateway.catalog.bases import Bases, ServedBase
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.health import Health
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.rest import rest_application
from gateway.snapshot import LiveSnapshot

BASES = (ServedBase("smol"), ServedBase("org/large"))
PEPPERS = Peppers.parse("1:" + "ab" * 32, "test")


@pytest.fixture
async def clients(database):
    """Administrators of two organisations, and one who holds a project's key."""
    async with database.publish() as session:
        service = IdentityService(session, datetime.now(UTC))
        texts = []
        for name in ("acme", "globex"):
            project = await service.create_project("web", name)
            owner = await service.organisation(name)
            texts.append(service.issue_admin(owner, KeyTerms(), peppers=PEPPERS).text)
        texts.append(service.issue(project, KeyTerms(), peppers=PEPPERS).text)
    live = LiveSnapshot(database, PEPPERS, base_model=Bases(BASES))
    await live.refresh()
    desk = AdminDesk(
        database, live.recognise, PEPPERS, bases=["smol", "org/large"], operator="acme"
    )
    health = Health(Fleet(Static(()), gateway="t"), lambda: 0.0)
    app = rest_application(health, base_model="smol", is_open=False, routers=[admin_router(desk)])
    transport = httpx2.ASGITransport(app=app)
    made = [
        AsyncOpenAI(base_url="http://gateway/v1", api_key="x", admin_api_key=text, max_retries=0,
                    http_client=httpx2.AsyncClient(transport=transport))
        for text in texts
    ]  # fmt: skip
    yield made, live
    for client in made:
        await client.close()
