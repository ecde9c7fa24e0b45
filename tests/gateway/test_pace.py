"""Counts of how fast answers came: quantiles within 5 %, each request counted once."""

import random
from datetime import UTC, datetime

import pytest

from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.pace import FIRST, TOKEN, quantile, seconds_of, step_of
from gateway.usage.pace_repository import PaceRepository
from gateway.usage.record import Outcome
from gateway.usage.recorder import Recorder
from gateway.usage.report import EVER
from tests.gateway.serving import BASE, serving
from tests.gateway.test_ledger import finished, started

AT = int(datetime(2026, 11, 30, 12, 7, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize("seconds", [1e-6, 0.00123, 0.034, 0.999, 1.0, 17.3, 601.0])
def test_a_step_stands_for_its_times_to_within_5_percent(seconds):
    assert seconds_of(step_of(round(seconds * 1e9))) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_quantiles_of_steps_are_those_of_the_times(share):
    dice = random.Random(3)
    times = sorted(dice.lognormvariate(-2, 1) for _ in range(2_001))
    steps: dict[int, int] = {}
    for each in times:
        steps[step_of(round(each * 1e9))] = steps.get(step_of(round(each * 1e9)), 0) + 1
    place = -(-share * len(times) // 1)
    assert quantile(steps, share) == pytest.approx(times[int(place) - 1], rel=0.05)


def test_of_nothing_there_is_no_quantile():
    assert quantile({}, 0.5) is None


async def test_the_ledger_counts_each_request_once_however_often_its_log_is_read(
    database, tmp_path
):
    recorder = await Recorder.open(UsageLog(tmp_path / "usage"))
    await recorder.started(started("req_open", at_ns=AT))  # holds the position back
    for name, outcome, first, token in (
        ("req_1", Outcome.COMPLETED, 200_000_000, 20_000_000),
        ("req_2", Outcome.COMPLETED, 210_000_000, 0),
        ("req_3", Outcome.ENGINE_LOST, 0, 0),
    ):
        await recorder.started(started(name, at_ns=AT))
        end = finished(name, outcome=outcome, first_ns=first, token_ns=token, at_ns=AT + 10**9)
        await recorder.finished(end)
        for _ in range(2):  # each reads what the ones before it have read
            await Ledger(recorder.log, database, live_from=recorder.first_segment).settle()
    await recorder.close()
    async with database.reading() as session:
        found = await PaceRepository(session, "org_1").counts(EVER)
        assert await PaceRepository(session, "org_2").counts(EVER) == {}
    assert {kind: sum(steps.values()) for kind, steps in found.items()} == {
        FIRST: 2, TOKEN: 1, "completed": 2, "engine_lost": 1,
    }  # fmt: skip


async def test_a_requests_record_says_when_its_first_tokens_came_and_how_the_others_followed(
    tmp_path,
):
    async with serving(tmp_path) as server:
        asked = {"model": BASE, "messages": [{"role": "user", "content": "hi"}]}
        await server.client().chat.completions.create(**asked, max_tokens=6)
        ended = server.recorder.ended[-1]
    assert 0 < ended.first_ns < 5 * 10**9
    assert ended.first_ns + 5 * ended.token_ns < 5 * 10**9
    assert ended.token_ns >= 0
