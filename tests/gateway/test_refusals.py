"""What is refused is counted by kind and minute, seen by its own tenant, and bounded."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.errors import Bound, InvalidRequest, ModelNotFound, RequestsLimited, Unavailable
from gateway.refusals import tally as tally_module
from gateway.refusals.keeper import RefusalKeeper
from gateway.refusals.repository import RefusalRepository, WantedRefusals
from gateway.refusals.tally import Tally
from tests.gateway.quotas import somebody
from tests.gateway.serving import BASE, KEY, LIMITED_KEY, ask, post, serving

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
DAY = WantedRefusals(start=NOON - timedelta(hours=12), end=NOON + timedelta(hours=12))
BOUND = Bound("key", "key_1", "requests per minute")
MESSAGES = [{"role": "user", "content": "a secret"}]


class Clock:
    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> float:
        return self.at.timestamp()


def limited(wait_s: float = 2.5) -> RequestsLimited:
    return RequestsLimited("no", retry_after=wait_s, bound=BOUND)


async def rows_of(database, organisation: str, wanted: WantedRefusals = DAY, most: int = 100):
    async with database.reading() as session:
        return await RefusalRepository(session, organisation).newest_first(most, wanted)


async def test_a_flood_is_one_row_a_minute_whichever_gateway_counts_it(database):
    clock, who = Clock(), somebody()
    here, there = (RefusalKeeper(database, Tally(clock)) for _ in range(2))
    for number in range(1000):
        here.tally.note(who, limited(), endpoint="embeddings", model="m", request=f"req_{number}")
    await here.flush()
    clock.at += timedelta(seconds=30)
    there.tally.note(who, limited(7.0), endpoint="embeddings", model="m", request="req_last")
    await there.flush()
    clock.at += timedelta(seconds=40)
    here.tally.note(who, limited(), endpoint="embeddings", model="m", request="req_next")
    await here.flush()
    await here.flush()
    following, first = await rows_of(database, who.organisation)
    assert (first.times, first.request_id, first.wait_ms) == (1001, "req_last", 7000)
    assert (first.first_at, first.last_at) == (NOON, NOON + timedelta(seconds=30))
    assert (first.status, first.code) == (429, "rate_limit_exceeded")
    assert (first.level, first.subject, first.limited) == ("key", "key_1", "requests per minute")
    assert (following.times, following.first_at) == (1, NOON + timedelta(seconds=70))


async def test_throttled_is_what_limits_refused_lately_and_nobody_elses(database):
    clock, who = Clock(), somebody()
    keeper = RefusalKeeper(database, Tally(clock))
    for number in range(12):  # a minute apart
        keeper.tally.note(who, limited(number), endpoint="embeddings")
        clock.at += timedelta(minutes=1)
    keeper.tally.note(who, ModelNotFound("x"), endpoint="embeddings", model="x")
    other = replace(who, organisation="org_2", project="prj_2")
    keeper.tally.note(other, limited(), endpoint="embeddings")
    await keeper.flush()
    async with database.reading() as session:
        rows = RefusalRepository(session, who.organisation)
        (one,) = await rows.throttled(NOON + timedelta(minutes=2))
        assert (one.key, one.times, one.wait_ms) == (who.key, 10, 11_000)
        assert one.last_at == NOON + timedelta(minutes=11)
        assert await rows.throttled(clock.at) == []
        (foreign,) = await RefusalRepository(session, "org_2").throttled(NOON)
        assert foreign.times == 1


def test_kinds_of_a_project_in_a_minute_are_bounded_and_none_is_lost(monkeypatch):
    clock, who = Clock(), somebody()
    tally = Tally(clock)
    other = replace(who, project="prj_other")
    for number in range(500):
        tally.note(who, ModelNotFound("x"), endpoint="embeddings", model=f"model-{number}")
        tally.note(other, limited(), endpoint="embeddings")
    found = tally.take()
    mine = [(kind, count) for kind, count in found if kind.project == who.project]
    assert len(mine) == tally_module.MOST_KINDS + 1
    assert sum(count.times for _, count in mine) == 500
    rest = next(kind for kind, _ in mine if not kind.model)
    assert (rest.key, rest.endpoint, rest.status, rest.code) == ("", "", 404, "model_not_found")
    tally.note(who, ModelNotFound("x"), endpoint="embeddings", model="model-0")
    assert tally.take()[0][0].model == "model-0", "a kind that is known stays one"
    tally.note(who, ModelNotFound("x"), endpoint="embeddings", model="model-400")
    assert tally.take()[0][0] == rest, "what was written counts as well"
    clock.at += timedelta(minutes=1)
    tally.note(who, ModelNotFound("x"), endpoint="embeddings", model="model-400")
    assert tally.take()[0][0].model == "model-400"
    monkeypatch.setattr(tally_module, "MOST_WAITING", 3)
    for number in range(9):
        tally.note(replace(who, project=f"prj_{number}"), limited(), endpoint="embeddings")
    assert (len(tally.take()), tally.dropped) == (3, 6)


def test_what_could_not_be_written_is_counted_on(monkeypatch):
    clock, who = Clock(), somebody()
    tally = Tally(clock)
    tally.note(who, limited(), endpoint="embeddings", request="req_1")
    taken = tally.take()
    clock.at += timedelta(seconds=1)
    tally.note(who, limited(), endpoint="embeddings", request="req_2")
    tally.give_back(taken)
    ((_, count),) = tally.take()
    assert (count.times, count.request, count.first) == (2, "req_2", NOON.timestamp())


@pytest.mark.parametrize("param", ["what the patient said", "x" * 65, "messages[0].ü"])
def test_a_field_that_is_no_plain_path_is_not_kept(param):
    tally = Tally(Clock())
    tally.note(somebody(), InvalidRequest("no", param=param), endpoint="", model="a\0\ud800" * 200)
    tally.note(somebody(), InvalidRequest("no", param="messages[3].role"), endpoint="")
    first, second = (kind for kind, _ in tally.take())
    assert (first.param, second.param) == ("", "messages[3].role")
    assert "\0" not in first.model
    assert len(first.model.encode()) <= 4 * 256


async def test_rows_go_in_time_or_when_a_project_has_too_many(database):
    clock, who = Clock(), somebody()
    keeper = RefusalKeeper(database, Tally(clock), days=7, most_rows=5)
    other = replace(who, organisation="org_2", project="prj_2")
    keeper.tally.note(other, limited(), endpoint="embeddings")
    for _ in range(9):
        keeper.tally.note(who, Unavailable("no"), endpoint="embeddings")
        clock.at += timedelta(minutes=1)
    await keeper.flush()
    assert await keeper.sweep(NOON) == 4
    left = await rows_of(database, who.organisation)
    assert [row.first_at for row in left] == [NOON + timedelta(minutes=m) for m in (8, 7, 6, 5, 4)]
    assert len(await rows_of(database, "org_2")) == 1
    assert await keeper.sweep(NOON + timedelta(days=7, minutes=6)) == 3
    assert len(await rows_of(database, who.organisation)) == 3


async def test_an_erasure_takes_a_customers_or_all_of_a_project(database):
    who = somebody()
    keeper = RefusalKeeper(database, Tally(Clock()))
    for customer in ("ada", "ad"):
        bound = Bound("customer", f"{who.project}/{customer}", "tokens per minute")
        keeper.tally.note(who, RequestsLimited("no", bound=bound), endpoint="embeddings")
    keeper.tally.note(who, limited(), endpoint="embeddings")
    await keeper.flush()
    async with database.unit_of_work() as session:
        rows = RefusalRepository(session, who.organisation)
        assert await RefusalRepository(session, "org_2").erase(who.project) == 0
        assert await rows.erase(who.project, "ada") == 1
        assert await rows.erase(who.project) == 2


async def test_every_refusal_whose_project_is_known_is_noted_and_no_other(tmp_path):
    tally = Tally()
    async with serving(tmp_path, refusals=tally, max_body_bytes=4096) as server:
        snapshot = server.snapshot.keys
        snapshot["scoped"] = replace(snapshot[KEY], key="key_scoped", endpoints=("/v1/embeddings",))
        body = {"model": BASE, "messages": MESSAGES, "max_tokens": 4}

        async def refused(body, key: str = KEY) -> int:
            return (await ask(server.port, post(body, key=key))).status

        assert await refused(body) == 200
        assert await refused(body, "nobody-knows-it") == 401
        assert tally.take() == []
        wrong = {**body, "temperature": "warm"}
        for answer, status, code, param, model in (
            (refused({**body, "model": "none"}), 404, "model_not_found", "model", "none"),
            (refused(wrong), 400, "invalid_type", "temperature", BASE),
            (refused(b"{"), 400, "invalid_json", "", ""),
            (refused(b" " * 5000), 413, "request_too_large", "", ""),
            (refused(body, "scoped"), 403, "permission_denied", "", ""),
        ):
            assert await answer == status
            ((kind, count),) = tally.take()
            assert (kind.status, kind.code, kind.param, kind.model) == (status, code, param, model)
            assert (kind.project, kind.endpoint) == ("prj_acme", "chat.completions")
            assert (count.times, count.request[:4]) == (1, "req_")
            assert "secret" not in repr(kind)


async def test_a_limit_that_refuses_is_named_and_what_was_admitted_is_not_noted(tmp_path):
    tally = Tally()
    async with serving(tmp_path, refusals=tally) as server:
        body = {"model": BASE, "messages": MESSAGES, "max_tokens": 4}
        request = post(body, key=LIMITED_KEY)
        answers = [(await ask(server.port, request)).status for _ in range(30)]
        assert 429 in answers
        found = tally.take()
        assert sum(count.times for _, count in found) == answers.count(429)
        assert {(kind.level, kind.status, kind.model) for kind, _ in found} == {("key", 429, BASE)}
        await server.engine.__aexit__(None, None, None)
        assert (await ask(server.port, post(body))).status == 503
        ends = [end.outcome for end in server.recorder.ended]
        noted = sum(count.times for _, count in tally.take())
        assert noted + ends.count("engine_lost") + ends.count("failed") == 1
