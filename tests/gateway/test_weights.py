"""What engines hear of a project's weight, and of which beginnings are public."""

from datetime import UTC, datetime

import pytest

from engine.protocol import AdapterRef
from gateway.errors import InvalidRequest
from gateway.identity.models import ApiKey, Organisation, Project
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.limits.models import Plan
from gateway.snapshot import LiveSnapshot
from gateway.weights import Weights
from tests.gateway.serving import BASE, ask, post, serving

NOW = datetime(2026, 12, 1, tzinfo=UTC)
HELP = "You answer for Initech. Never speak of the red stapler."


@pytest.mark.parametrize(
    ("project", "organisation", "plan", "weight"),
    [(None, None, None, 1), (None, None, 5, 5), (None, 3, 5, 3), (7, 3, 5, 7), (7, None, None, 7)],
)
def test_the_nearest_weight_counts(project, organisation, plan, weight):
    owner = Organisation(id="org_1", name="o", plan_id="pln_1", weight=organisation)
    key = ApiKey(organisation_id="org_1", project=Project(id="prj_1", weight=project))
    assert Weights([owner], [Plan(id="pln_1", name="p", weight=plan)]).of(key) == weight


async def test_a_weight_that_was_set_is_its_keys(database):
    peppers = Peppers({1: b"p" * 32}, 1)
    async with database.publish() as session:
        service = IdentityService(session, NOW)
        ours = await service.create_project("ours")
        theirs = await service.create_project("theirs")
        keys = [service.issue(p, KeyTerms(), peppers=peppers).text for p in (ours, theirs)]
        await session.flush()
        await service.set_organisation_weight("default", 2)
        await service.set_weight("ours", 10)
    live = LiveSnapshot(database, peppers, base_model="base")
    await live.refresh()
    assert [live.authenticate(key).weight for key in keys] == [10, 2]


@pytest.mark.parametrize("weight", [0, -1, 1001])
async def test_a_weight_outside_its_range_is_refused(database, weight):
    async with database.unit_of_work() as session:
        service = IdentityService(session, NOW)
        await service.create_project("ours")
        with pytest.raises(InvalidRequest, match="must be from 1 to 1000"):
            await service.set_weight("ours", weight)


async def asked(server, system: str, model: str = BASE):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]
    answer = await ask(server.port, post({"model": model, "messages": messages, "max_tokens": 1}))
    assert answer.status == 200
    return server.engine.submitted[-1]


async def test_a_public_system_message_is_shared_as_far_as_it_goes(tmp_path):
    async with serving(tmp_path, public=["Be brief.", HELP]) as server:
        whole = await asked(server, HELP)
        shared = whole.tokens[: whole.public_tokens]
        assert HELP in "".join(map(server.tokenizer.text_of, shared))
        assert whole.public_tokens < len(whole.tokens)  # what the user says is nobody's
        part = await asked(server, HELP[:23] + " Secrets follow.")
        assert 0 < part.public_tokens < whole.public_tokens
        assert part.tokens[: part.public_tokens] == shared[: part.public_tokens]


async def test_with_an_adapter_or_without_a_declaration_nothing_is_public(tmp_path):
    async with serving(tmp_path, public=[HELP]) as server:
        assert (await asked(server, HELP, "support")).public_tokens == 0
    async with serving(tmp_path) as server:
        assert (await asked(server, HELP)).public_tokens == 0


async def test_before_an_activated_adapter_is_invoked_all_is_the_base_s(tmp_path):
    async with serving(tmp_path, public=[HELP]) as server:
        server.snapshot.adapters["prj_acme", "support"] = AdapterRef("f" * 64, 8, (1, 2))
        active = await asked(server, HELP, "support")
        assert active.public_tokens == (await asked(server, HELP)).public_tokens > 0


async def test_engines_hear_the_weight(tmp_path):
    async with serving(tmp_path) as server:
        assert (await asked(server, "x")).weight == 1
