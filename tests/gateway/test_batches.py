"""Batches over the official client: checked, answered behind everybody, billed once, cancelled."""

import asyncio
from datetime import timedelta

import pytest
from openai import APIStatusError, NotFoundError, PermissionDeniedError

from gateway.batches.custody import HELD_FOR, Custody, CustodyLost
from gateway.batches.repository import WorkRepository
from gateway.db import DatabaseUnavailable
from gateway.identity.service import IdentityService, KeyTerms
from gateway.inference.tier import BATCH_PRIORITY
from gateway.limits.models import Level
from gateway.limits.period import MONTH
from gateway.limits.rules import Subject
from gateway.limits.service import LimitService
from tests.fakes.clock import until
from tests.gateway.batching import CHAT, batching, line
from tests.gateway.serving import BASE
from tests.services import BOTH, sqlite_unless_both

backend = sqlite_unless_both


@pytest.fixture
async def desk(database, tmp_path):
    async with batching(database, tmp_path) as found:
        yield found


@BOTH
async def test_every_line_is_answered_in_order_and_billed_at_the_batch_price(desk):
    batch = await desk.send([line(n) for n in range(5)], metadata={"for": "tests"})
    assert (batch.status, batch.metadata) == ("validating", {"for": "tests"})
    batch = await desk.end_of(batch)
    assert (batch.status, batch.model, batch.errors) == ("completed", BASE, None)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (5, 5, 0)
    assert batch.error_file_id is None
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert list(times) == sorted(times)
    lines = await desk.lines(batch.output_file_id)
    assert [each["custom_id"] for each in lines] == [f"line-{n}" for n in range(5)]
    events = {event["id"]: event for event in await desk.events()}
    assert len(events) == 5
    for each in lines:
        assert each["error"] is None
        assert each["id"].startswith("batch_req_")
        response = each["response"]
        assert response["status_code"] == 200
        assert response["body"]["object"] == "chat.completion"
        usage, event = response["body"]["usage"], events[response["request_id"]]
        assert event["prompt_tokens"] == usage["prompt_tokens"]
        assert event["completion_tokens"] == usage["completion_tokens"] == 4
        assert event["tier"] == "batch"
        assert event["cost_nano"] == usage["prompt_tokens"] * 1000 + 4 * 2000
    assert batch.usage.output_tokens == 20
    assert batch.usage.input_tokens == sum(event["prompt_tokens"] for event in events.values())
    assert {submit.priority for submit in desk.engine.submitted} == {BATCH_PRIORITY}


async def test_completions_are_answered_too_and_a_line_that_is_refused_is_in_the_error_file(desk):
    good = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
            "body": {"model": BASE, "prompt": ["Hello", "world"], "max_tokens": 3}}  # fmt: skip
    bad = {**good, "custom_id": "b", "body": {"model": BASE, "prompt": "Hi", "temperature": 9}}
    batch = await desk.end_of(await desk.send([bad, good], endpoint="/v1/completions"))
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    (answer,) = await desk.lines(batch.output_file_id)
    assert len(answer["response"]["body"]["choices"]) == 2
    (refused,) = await desk.lines(batch.error_file_id)
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("b", 400)
    assert refused["response"]["body"]["error"]["param"] == "temperature"
    assert len(await desk.events()) == 1
    ((kind, count),) = desk.refusals.take()
    assert (kind.status, kind.endpoint, kind.param, kind.model, count.times) == (
        400, "batches", "temperature", BASE, 1,
    )  # fmt: skip


async def test_texts_become_vectors_billed_by_their_input_alone(desk):
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings",
             "body": {"model": BASE, "input": ["Hello", "world"], "dimensions": 4}}  # fmt: skip
    batch = await desk.end_of(await desk.send([asked], endpoint="/v1/embeddings"))
    (answer,) = await desk.lines(batch.output_file_id)
    body = answer["response"]["body"]
    assert [len(one["embedding"]) for one in body["data"]] == [4, 4]
    (event,) = await desk.events()
    assert (event["endpoint"], event["completion_tokens"]) == ("embeddings", 0)
    assert event["cost_nano"] == body["usage"]["prompt_tokens"] * 1000


async def test_an_input_that_is_not_right_fails_whole_and_names_the_line(desk):
    batch = await desk.end_of(await desk.send([line(1), line(1), line(2, model="none")]))
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert batch.failed_at >= batch.created_at
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (2, "duplicate_custom_id"), (3, "model_not_found")]  # fmt: skip
    assert desk.engine.submitted == []


@BOTH
async def test_cancelling_lets_what_runs_end_and_begins_nothing_more(database, tmp_path):
    async with batching(database, tmp_path, batch_concurrency=2) as desk:
        desk.engine.knobs.token_delay_s = 0.05
        batch = await desk.send([line(n) for n in range(30)])
        await until(lambda: len(desk.engine.submitted) >= 2)
        told = await desk.client().batches.cancel(batch.id)
        assert told.status == "cancelling"
        batch = await desk.end_of(batch)
        assert batch.status == "cancelled"
        done, left = batch.request_counts.completed, batch.request_counts.failed
        assert done + left == 30
        assert left > 20
        assert len(await desk.lines(batch.output_file_id)) == done == len(await desk.events())
        errors = await desk.lines(batch.error_file_id)
        assert {(e["response"], e["error"]["code"]) for e in errors} == {(None, "batch_cancelled")}
        assert len({e["custom_id"] for e in errors}) == left
        with pytest.raises(APIStatusError) as again:
            await desk.client().batches.cancel(batch.id)
        assert again.value.status_code == 409


async def test_a_window_that_ends_leaves_what_was_answered_and_tells_the_rest(database, tmp_path):
    async with batching(database, tmp_path, batch_concurrency=2) as desk:
        desk.engine.knobs.token_delay_s = 0.05
        batch = await desk.send([line(n) for n in range(30)])
        await until(lambda: len(desk.engine.submitted) >= 2)
        desk.clock.ahead = timedelta(hours=25)
        batch = await desk.end_of(batch)
        assert (batch.status, batch.request_counts.total) == ("expired", 30)
        errors = await desk.lines(batch.error_file_id)
        assert {error["error"]["code"] for error in errors} == {"batch_expired"}
        assert len(await desk.lines(batch.output_file_id)) + len(errors) == 30


@BOTH
async def test_others_find_nothing_and_admin_keys_may_not(desk):
    batch = await desk.end_of(await desk.send([line(1)]))
    for who, error in (("globex", NotFoundError), ("admin", PermissionDeniedError)):
        client = desk.client(who)
        for call in (
            client.batches.retrieve(batch.id),
            client.batches.cancel(batch.id),
            client.files.retrieve(batch.output_file_id),
            client.files.content(batch.output_file_id),
            client.files.delete(batch.input_file_id),
            client.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            ),
        ):
            with pytest.raises(error):
                await call
    assert [row.id async for row in desk.client("globex").batches.list()] == []
    assert [row.id async for row in desk.client("globex").files.list()] == []


async def test_lists_are_paged_and_what_is_asked_for_must_exist(desk):
    made = [(await desk.send([line(1)])).id for _ in range(5)]
    client = desk.client()
    assert [row.id async for row in client.batches.list(limit=2)] == made[::-1]
    page = await client.batches.list(limit=2)
    assert (page.has_more, len(page.data)) == (True, 2)
    with pytest.raises(APIStatusError, match="after must be the id"):
        await client.batches.list(after="zz")
    for change, param in (
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
    ):
        whole = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": "x"}
        with pytest.raises(APIStatusError) as refused:
            await client.batches.create(**whole | change)
        assert refused.value.status_code in (400, 404)
        assert refused.value.param == param


async def test_a_project_may_have_so_many_open_batches(database, tmp_path):
    async with batching(database, tmp_path, running=False, batches_per_tenant=2) as desk:
        for _ in range(2):
            await desk.send([line(1)])
        with pytest.raises(APIStatusError) as refused:
            await desk.send([line(1)])
        assert (refused.value.status_code, refused.value.code) == (429, "batch_queue_full")
        await desk.send([line(1)], "globex")


async def test_a_line_whose_engine_is_lost_is_asked_again_and_billed_once(desk):
    desk.engine.knobs.die_after = 2
    batch = await desk.send([line(1)])
    await until(lambda: len(desk.engine.submitted) >= 2)
    desk.engine.knobs.die_after = None
    batch = await desk.end_of(batch)
    assert batch.request_counts.completed == 1
    (event,) = await desk.events()
    assert event["completion_tokens"] == 4
    assert len({submit.request for submit in desk.engine.submitted}) >= 2


async def test_lines_leave_half_of_a_rate_to_live_requests(database, tmp_path):
    terms = KeyTerms(requests_per_minute=60)
    async with batching(database, tmp_path, terms=terms, batch_concurrency=1) as desk:
        batch = await desk.send([line(n) for n in range(50)])
        await until(lambda: len(desk.engine.submitted) >= 28)
        await asyncio.sleep(0.3)
        assert 28 <= len(desk.engine.submitted) <= 33
        assert (await desk.client().batches.retrieve(batch.id)).status == "in_progress"
        await desk.client().batches.cancel(batch.id)
        assert (await desk.end_of(batch)).status == "cancelled"


@BOTH
async def test_a_budget_that_is_used_up_ends_lines_and_nothing_is_spent_beyond(desk):
    async with desk.database.publish() as session:
        owner = (await IdentityService(session, desk.clock()).organisation("default")).id
        limits = LimitService(session, owner, desk.clock())
        await limits.set_budget(Subject(Level.ORGANISATION, owner), MONTH, 150_000)
    await desk.live.refresh()
    batch = await desk.end_of(await desk.send([line(n) for n in range(12)]))
    assert batch.status == "completed"
    assert batch.request_counts.failed > 0
    codes = {
        each["response"]["body"]["error"]["code"] for each in await desk.lines(batch.error_file_id)
    }
    assert codes == {"organization_spend_limit_exceeded"}
    spent = sum(event["cost_nano"] for event in await desk.events())
    assert 0 < spent <= 150_000


async def test_a_key_that_is_revoked_takes_its_batch_with_it(database, tmp_path):
    async with batching(database, tmp_path, batch_concurrency=1) as desk:
        desk.engine.knobs.token_delay_s = 0.02
        batch = await desk.send([line(n) for n in range(10)])
        await until(lambda: desk.engine.submitted)
        async with database.publish() as session:
            await IdentityService(session, desk.clock()).revoke(desk.live.authenticate(
                desk.keys["acme"]).key)  # fmt: skip
        await desk.live.refresh()
        async with database.publish() as session:
            service = IdentityService(session, desk.clock())
            project = await service.project("acme")
            desk.keys["acme"] = service.issue(project, KeyTerms(), peppers=desk.peppers).text
        await desk.live.refresh()
        batch = await desk.end_of(batch)
        assert batch.request_counts.failed >= 8
        refused = await desk.lines(batch.error_file_id)
        assert {each["response"]["status_code"] for each in refused} == {401}


async def test_a_batch_that_waits_for_its_limits_keeps_no_others_waiting(database, tmp_path):
    terms = KeyTerms(requests_per_minute=4)
    async with batching(database, tmp_path, terms=terms, batch_concurrency=2) as desk:
        slow = await desk.send([line(n) for n in range(20)])
        await until(lambda: len(desk.engine.submitted) >= 2)
        quick = await desk.send([line(1)], "globex")
        assert (await desk.end_of(quick, "globex")).status == "completed"
        assert (await desk.client().batches.retrieve(slow.id)).status == "in_progress"


async def test_a_gateway_that_stops_lets_its_batches_go_at_once(database, tmp_path):
    async with batching(database, tmp_path) as desk:
        desk.engine.knobs.token_delay_s = 0.2
        batch = await desk.send([line(n) for n in range(3)])
        await until(lambda: len(desk.engine.submitted) == 3)
    assert await taken(desk, batch.id, "log_b") is not None
    assert await desk.events() == []


async def test_an_answer_whose_commit_was_not_heard_of_is_written_once(
    database, tmp_path, monkeypatch
):
    """The database commits, and the connection is lost before it can say so."""
    async with batching(database, tmp_path) as desk:
        whole, lost = Custody._write, []

        async def write(self, change):
            row = await whole(self, change)
            if row.completed and not lost:
                lost.append(row.completed)
                raise DatabaseUnavailable("the connection was lost")
            return row

        monkeypatch.setattr(Custody, "_write", write)
        batch = await desk.end_of(await desk.send([line(n) for n in range(3)]))
        assert lost
        assert batch.request_counts.completed == 3
        assert len(await desk.events()) == 3
        assert len(await desk.lines(batch.output_file_id)) == 3


@BOTH
async def test_a_batch_is_taken_over_and_who_had_it_writes_nothing_more(database, tmp_path):
    async with batching(database, tmp_path, running=False) as desk:
        batch = await desk.send([line(1)])
        first = await taken(desk, batch.id, "log_a")
        assert await taken(desk, batch.id, "log_b") is None
        desk.clock.ahead = HELD_FOR + timedelta(seconds=1)
        second = await taken(desk, batch.id, "log_b")
        with pytest.raises(CustodyLost):
            await Custody(database, first, clock=desk.clock).write()
        assert (await Custody(database, second, clock=desk.clock).write()).owner == "log_b"
        again = await taken(desk, batch.id, "log_b")  # after a crash, at once
        assert again.fence == second.fence + 1
        with pytest.raises(CustodyLost):
            await Custody(database, second, clock=desk.clock).write()


async def taken(desk, batch: str, owner: str):
    now = desk.clock()
    async with desk.database.unit_of_work() as session:
        return await WorkRepository(session).take(batch, owner, now, now + HELD_FOR)
