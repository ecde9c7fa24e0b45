"""Overload is told early, with when to come back; no project takes the last place from others."""

import pytest

from engine.protocol import RefusalCode, Refused
from gateway.counter import Count
from gateway.errors import Unavailable
from gateway.inference.room import Room
from tests.gateway.serving import ask, post, serving

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


async def test_an_engine_that_foresees_too_long_a_wait_is_a_503_with_its_time_to_retry(tmp_path):
    async with serving(tmp_path) as server:
        detail = "its turn would come in about 12.0 s; it has 5 s"
        server.engine.knobs.refuse = Refused("", RefusalCode.QUEUE_FULL, detail, 7000)
        answer = await ask(server.port, post(ASKED))
        assert (answer.status, answer.error["code"]) == (503, "server_is_overloaded")
        assert (answer.headers["retry-after-ms"], answer.headers["retry-after"]) == ("7000", "7")


async def test_another_engine_is_tried_first(tmp_path):
    async with serving(tmp_path, engines=2) as server:
        server.engines[0].knobs.refuse = RefusalCode.QUEUE_FULL
        assert (await ask(server.port, post(ASKED))).status == 200


@pytest.mark.parametrize(("asked", "given"), [("2500", 2500), ("99999999", 30_000), (None, 30_000)])
async def test_the_engine_hears_the_clients_deadline_or_the_shorter_one(tmp_path, asked, given):
    async with serving(tmp_path) as server:
        headers = [] if asked is None else [f"x-request-timeout-ms: {asked}"]
        assert (await ask(server.port, post(ASKED, *headers))).status == 200
        assert server.engine.submitted[0].deadline_ms == given


@pytest.mark.parametrize("asked", ["0", "-5", "1e3", "2.5", "soon", "99999999999", "\u0663"])
async def test_a_deadline_that_is_none_is_refused_by_name(tmp_path, asked):
    async with serving(tmp_path) as server:
        answer = await ask(server.port, post(ASKED, f"x-request-timeout-ms: {asked}"))
        assert (answer.status, answer.error["param"]) == (400, "x-request-timeout-ms")


async def test_an_answer_that_takes_longer_than_its_client_gave_it_is_a_504(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.inference.call.GRACE_SECONDS", 0.1)
    async with serving(tmp_path) as server:
        server.engine.knobs.hang_after = 1
        answer = await ask(server.port, post(ASKED, "x-request-timeout-ms: 100"))
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")


def test_a_flood_of_one_project_leaves_others_a_way_in():
    room = Room(8, Count())
    held = [room.taken("flood") for _ in range(7)]
    for taken in held:
        taken.__enter__()
    with pytest.raises(Unavailable):
        room.require("flood")
    room.require("other")
    with room.taken("other"), pytest.raises(Unavailable):
        room.require("third")
    held.pop().__exit__(None, None, None)
    room.require("flood")
