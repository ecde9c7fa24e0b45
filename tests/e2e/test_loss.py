"""Clients that leave and engines that die: nothing is held, everything is counted."""

import time
from concurrent.futures import ThreadPoolExecutor

import openai

from tests.e2e.server import Server, eventually

STORY = [{"role": "user", "content": "Tell me a very long story about the sea and its ships."}]


def stream(server: Server, model: str | None = None, tokens: int = 600):
    return server.client().chat.completions.create(
        model=model or server.base, messages=STORY, max_tokens=tokens, stream=True, temperature=0
    )


def test_a_client_that_vanishes_holds_no_page_and_is_billed(server: Server):
    before = usage_rows(server)
    answer = stream(server, server.adapters(0)[0])
    for _ in zip(range(6), answer, strict=False):
        pass
    answer.close()
    assert eventually(lambda: server.metric("loratorio_engine_num_requests_running") == 0, 5.0)
    assert eventually(lambda: server.metric("loratorio_engine_pages", held_by="kv") == 0, 5.0)
    assert eventually(lambda: len(usage_rows(server)) == len(before) + 1, 10.0)
    last = usage_rows(server)[-1]
    assert last["outcome"] == "cancelled"
    assert 4 <= int(last["completion_tokens"]) < 600


def usage_rows(server: Server) -> list[dict[str, str]]:
    """The usage events of the first demo project, oldest first, as the command lists them."""
    raise NotImplementedError


def test_every_waiting_client_is_told_that_the_engine_died_and_the_next_is_served(server: Server):
    def until_told() -> str:
        try:
            for _ in stream(server):
                pass
        except openai.APIError as error:
            return str(error.code)
        return "finished"

    with ThreadPoolExecutor(4) as pool:
        told = [pool.submit(until_told) for _ in range(4)]
        assert eventually(lambda: server.metric("loratorio_engine_num_requests_running") == 4, 20.0)
        killed = time.monotonic()
        server.kill("engine")
        codes = [each.result(timeout=30) for each in told]
    assert codes == ["engine_lost"] * 4
    assert time.monotonic() - killed < 10
    assert eventually(lambda: answers(server), 60.0)


def answers(server: Server) -> bool:
    try:
        stream(server, tokens=1)
    except openai.InternalServerError:
        return False
    return True
