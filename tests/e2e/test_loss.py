"""Clients that leave and engines that die: nothing is held, everything is counted."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai

from tests.e2e.server import Server, eventually, loratorio

LONG = "Tell me a very long story about the sea, its ships, its storms and its people."
LIMIT = 600  # tokens: far more than is read


@contextmanager
def story(server: Server, model: str, tokens: int = LIMIT) -> Iterator[Any]:
    """A stream that goes on for long; closed at the end of the block, read or not."""
    asked = server.client().chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": LONG}],
        max_tokens=tokens,
        stream=True,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    with asked as stream:
        yield stream


def used(server: Server, model: str) -> dict[str, int]:
    """What the first demo project used of a model so far, as the command line tells it."""
    tenant = server.tenant(0)["name"]
    told = loratorio(
        "usage", "--tenant", tenant, "--json", "--data-dir", str(server.data_dir), timeout=120
    )
    assert told.returncode == 0, told.stderr
    rows = [row for row in json.loads(told.stdout) if row["model"] == model]
    fields = ("requests", "prompt_tokens", "completion_tokens")
    return {field: sum(row[field] for row in rows) for field in fields}


def nothing_is_held(server: Server) -> bool:
    return (
        server.metric("loratorio_engine_num_requests_running") == 0
        and server.metric("loratorio_engine_pages", held_by="kv") == 0
    )


def test_a_client_that_vanishes_holds_no_page_and_is_billed(server: Server):
    model = server.adapters(0)[0]
    before = used(server, model)
    with story(server, model) as stream:
        for _ in zip(range(6), stream, strict=False):
            pass
        assert server.metric("loratorio_engine_pages", held_by="kv") > 0
    assert eventually(lambda: nothing_is_held(server), 30.0)
    assert eventually(lambda: used(server, model)["requests"] > before["requests"], 20.0)
    after = used(server, model)
    assert after["requests"] == before["requests"] + 1
    assert after["prompt_tokens"] - before["prompt_tokens"] > 10
    assert 4 <= after["completion_tokens"] - before["completion_tokens"] < LIMIT


def test_every_waiting_client_is_told_that_the_engine_died_and_the_next_is_served(server: Server):
    def until_told() -> str:
        try:
            with story(server, server.base) as stream:
                for _ in stream:
                    pass
        except openai.APIError as error:
            return str(error.code)
        return "finished"

    with ThreadPoolExecutor(4) as pool:
        told = [pool.submit(until_told) for _ in range(4)]
        assert eventually(lambda: server.metric("loratorio_engine_num_requests_running") == 4, 60.0)
        killed = time.monotonic()
        server.kill("engine")
        codes = [each.result(timeout=30) for each in told]
    assert codes == ["engine_lost"] * 4
    assert time.monotonic() - killed < 10
    assert eventually(lambda: answers(server), 120.0)


def answers(server: Server) -> bool:
    try:
        with story(server, server.base, tokens=1) as stream:
            return len(list(stream)) > 0
    except openai.InternalServerError:
        return False
