"""Usage and costs through the official client: equal to the ledger, however they are cut."""

import itertools
from datetime import UTC, datetime, timedelta

import openai
import pytest

from gateway.identity.organisation_repository import OrganisationRepository
from gateway.identity.repository import IdentityRepository
from gateway.usage.event import Kind
from gateway.usage.report import UsageReport, Window
from gateway.usage.rollups import Rollups
from tests.gateway.test_report import event, write

DAY_0 = datetime(2026, 11, 28, tzinfo=UTC)
START, END = int(DAY_0.timestamp()), int((DAY_0 + timedelta(days=4)).timestamp())


@pytest.fixture
async def ledger(database, clients):
    """Events of acme's project over four days, some rolled up; and one of globex's."""
    async with database.reading() as session:
        acme, globex = await IdentityRepository(session).organisations()
        [web] = await OrganisationRepository(session, acme.id).projects()
    mine = {"organisation_id": acme.id, "project_id": web.id}
    many = [
        event(DAY_0 + timedelta(hours=5 * n), **mine, user_id=("ann", "")[n % 2],
              adapter_id=("adp_1", None)[n % 2], key_id=f"key_{n % 3}",
              model=("support", "smol")[n % 2])
        for n in range(18)
    ]  # fmt: skip
    await write(database, *many[:12], event(DAY_0, organisation_id=globex.id))
    await Rollups(database).roll_up()
    await write(
        database, *many[12:],
        event(DAY_0, **mine, price_id=None, cost_nano=None, input_nano=0, cached_nano=0,
              output_nano=0),
        event(DAY_0, **mine, kind=Kind.STORAGE, prompt_tokens=0, cached_tokens=0,
              completion_tokens=0, storage_byte_hours=2**31, cost_nano=5, input_nano=0,
              cached_nano=0, output_nano=0, storage_nano=5),
    )  # fmt: skip
    async with database.reading() as session:
        window = Window(DAY_0, DAY_0 + timedelta(days=4))
        return await UsageReport(session, acme.id).total(window)


def usage_of(clients):
    return clients[0][0].admin.organization.usage


def results(pages):
    return [line for page in pages for bucket in page.data for line in bucket.results]


async def turned(call, **query):
    """Every page."""
    pages = [await call(**query)]
    while pages[-1].has_more:
        pages.append(await call(page=pages[-1].next_page, **query))
    return pages


EVERY_GROUP = [
    "project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "adapter_id",
]  # fmt: skip


async def test_usage_is_what_the_ledger_says(clients, ledger):
    for width in ("1m", "1h", "1d"):
        for group_by in ([], EVERY_GROUP):
            await usage_is_what_the_ledger_says(clients, ledger, width, group_by)


async def usage_is_what_the_ledger_says(clients, ledger, width, group_by):
    pages = await turned(
        usage_of(clients).completions,
        start_time=START, end_time=END, bucket_width=width, group_by=group_by,
        limit=1440 if width == "1m" else 3,
    )  # fmt: skip
    assert len(pages) == {"1m": 4, "1h": 32, "1d": 2}[width]
    lines = results(pages)
    assert sum(line.num_model_requests for line in lines) == ledger.requests == 19
    assert sum(line.input_tokens for line in lines) == ledger.prompt_tokens
    assert sum(line.input_cached_tokens for line in lines) == ledger.cached_tokens
    assert sum(line.input_uncached_tokens for line in lines) == ledger.uncached_tokens
    assert sum(line.output_tokens for line in lines) == ledger.completion_tokens
    if group_by:
        assert {(line.model, line.user_id, line.adapter_id) for line in lines} == {
            ("support", "ann", "adp_1"), ("smol", None, None),
        }  # fmt: skip
        assert {line.batch for line in lines} == {False}
    else:
        assert {(line.model, line.batch) for line in lines} == {(None, None)}
    buckets = [bucket for page in pages for bucket in page.data]
    for one, after in itertools.pairwise(buckets):
        assert one.end_time == after.start_time
    assert (buckets[0].start_time, buckets[-1].end_time) == (START, END)


async def test_usage_is_filtered(clients, ledger):
    ask = {"start_time": START, "end_time": END}
    call = usage_of(clients).completions
    [line] = results([await call(**ask, models=["support"], limit=1)])
    assert line.num_model_requests == 3
    both = results([await call(**ask, api_key_ids=["key_0", "key_1"])])
    assert sum(line.num_model_requests for line in both) == 13
    adapter = results([await call(**ask, extra_query={"adapter_ids": ["adp_1"]})])
    assert sum(line.num_model_requests for line in adapter) == 9
    assert results([await call(**ask, project_ids=["prj_other"])]) == []
    assert results([await call(**ask, batch=True)]) == []
    assert len(results([await call(**ask, batch=False)])) == 4


async def test_usage_tells_batches_apart(database, clients, ledger):
    async with database.reading() as session:
        [acme, _] = await IdentityRepository(session).organisations()
    mine = {"organisation_id": acme.id, "project_id": "prj_1"}
    await write(database, event(DAY_0, tier="batch", **mine), event(DAY_0, tier="priority", **mine))
    ask = {"start_time": START, "end_time": END}
    call = usage_of(clients).completions
    [batch] = results([await call(**ask, batch=True)])
    assert (batch.num_model_requests, batch.batch) == (1, None)
    rest = results([await call(**ask, batch=False)])
    assert sum(line.num_model_requests for line in rest) == 20
    lines = results([await call(**ask, group_by=["batch"], limit=1)])
    assert sorted((line.batch, line.num_model_requests) for line in lines) == [
        (False, 7),
        (True, 1),
    ]
    assert {line.service_tier for line in lines} == {None}


async def test_costs_are_what_the_ledger_says_by_line_item_too(clients, ledger):
    call = usage_of(clients).costs
    for groups in ([], ["line_item"], ["project_id", "user_id", "api_key_id", "adapter_id"]):
        lines = results([await call(start_time=START, end_time=END, group_by=groups)])
        assert sum(line.amount.nano_usd for line in lines) == ledger.cost.total == 18 * 60 + 5
        assert {line.amount.currency for line in lines} == {"usd"}
        if groups == ["line_item"]:
            tokens = [line for line in lines if line.quantity_unit == "tokens"]
            assert sum(line.quantity for line in tokens) == (
                ledger.prompt_tokens + ledger.completion_tokens
            )
            [storage] = [line for line in lines if line.quantity_unit == "gibibyte_hours"]
            assert (storage.line_item, storage.quantity) == ("smol, adapter_storage", 2.0)
        else:
            assert sum(line.unpriced_requests for line in lines) == ledger.unpriced == 1
    chosen = results(
        [await call(start_time=START, end_time=END, line_items=["smol, output_tokens"])]
    )
    assert sum(line.amount.nano_usd for line in chosen) == 9 * 30


async def test_a_page_begins_where_the_last_one_ended_though_time_goes_on(clients):
    call = usage_of(clients).completions
    first = await call(start_time=START, limit=1)
    assert first.has_more
    second = await call(start_time=START, limit=31, page=first.next_page)
    assert second.data[0].start_time == first.data[0].end_time
    until = min(START + 32 * 86400, datetime.now(UTC).timestamp() - 86400)
    assert second.data[-1].end_time >= until


async def test_another_organisation_sees_its_own_alone(clients, ledger):
    (_, globex, _), _ = clients
    page = await globex.admin.organization.usage.completions(start_time=START, end_time=END)
    assert sum(line.num_model_requests for line in results([page])) == 1


BAD = [
    ({"start_time": START, "end_time": START}, "start_time"),
    ({"start_time": -1}, "start_time"),
    ({"start_time": 10**15}, "start_time"),
    ({"start_time": "now"}, "start_time"),
    ({"start_time": START, "bucket_width": "1w"}, "bucket_width"),
    ({"start_time": START, "limit": 32}, "limit"),
    ({"start_time": START, "limit": 0}, "limit"),
    ({"start_time": START, "page": "2"}, "page"),
    ({"start_time": START, "page": f"page_{START - 1}_{END}"}, "page"),
    ({"start_time": START, "group_by": ["api_source"]}, "group_by"),
    ({"start_time": START, "models": ["m"] * 101}, "models"),
    ({"start_time": START, "extra_query": {"model": "smol"}}, "model"),
]


async def test_a_bad_query_names_its_parameter(clients):
    for query, param in BAD:
        with pytest.raises(openai.BadRequestError) as told:
            await usage_of(clients).completions(**query)
        assert told.value.param == param
        assert param in told.value.message


async def test_start_time_must_be_given(clients):
    with pytest.raises(openai.BadRequestError, match="start_time must be given"):
        await clients[0][0].get("/organization/costs", cast_to=object,
                                options={"security": {"admin_api_key_auth": True}})  # fmt: skip


async def test_embeddings_are_told_apart(database, clients, ledger):
    async with database.reading() as session:
        [acme, _] = await IdentityRepository(session).organisations()
    mine = {"organisation_id": acme.id, "project_id": "prj_1", "endpoint": "embeddings"}
    await write(database, event(DAY_0, completion_tokens=0, **mine))
    ask = {"start_time": START, "end_time": END}
    [line] = results([await usage_of(clients).embeddings(**ask, group_by=["model"])])
    assert (line.object, line.num_model_requests, line.input_tokens, line.model) == (
        "organization.usage.embeddings.result", 1, 10, "smol",
    )  # fmt: skip
    rest = results([await usage_of(clients).completions(**ask)])
    assert sum(line.num_model_requests for line in rest) == ledger.requests
