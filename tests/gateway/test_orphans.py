"""What engines tell of a request whose gateway died: each prompt once, by who was asked last."""

import asyncio
from contextlib import asynccontextmanager

from engine.protocol import Counts
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.orphans import Orphans
from gateway.usage.reconcile import merged
from tests.fakes.clock import until
from tests.fakes.engine import FakeEngine
from tests.gateway.test_fleet import running


@asynccontextmanager
async def asked(folder, *records, extra=()):
    """``records``: what each engine knows: (name, boot, tokens, finished)."""
    engines = [FakeEngine(f"unix:{folder}/{number}.sock") for number in range(len(records))]
    for engine, record in zip(engines, records, strict=True):
        for name, boot, tokens, finished in record:
            engine.record[name] = Counts(name, boot, 10, tokens, finished)
        await engine.__aenter__()
    addresses = (*(engine.address for engine in engines), *extra)
    async with running(Fleet(Static(addresses), gateway="g")) as fleet:
        await until(lambda: len(fleet.ready) == len(engines))
        yield Orphans(fleet)
    for engine in engines:
        await engine.__aexit__(None, None, None)


async def test_what_one_engine_recorded_is_told(tmp_path):
    async with asked(tmp_path, [], [("req_1", "boot-1", 5, True)]) as orphans:
        found = await orphans.lookup("req_1")
        assert (found.boot, found.completion_tokens, found.finished) == ("boot-1", 5, True)


async def test_of_a_prompt_that_was_asked_again_the_last_try_counts(tmp_path):
    first = [("req_1", "boot-0", 7, False)]
    second = [("req_1+1", "boot-1", 5, True)]
    for records in ((first, second), (second, first)):
        async with asked(tmp_path, *records) as orphans:
            found = await orphans.lookup("req_1")
            assert (found.completion_tokens, found.prompt_tokens, found.finished) == (5, 10, True)


async def test_prompts_on_several_engines_are_added_up(tmp_path):
    here = [("req_1-0", "boot-1", 1, True), ("req_1-40", "boot-1", 2, False)]
    there = [("req_1-1", "boot-1", 4, True), ("req_1-2", "boot-0", 8, False)]
    async with asked(tmp_path, here, there) as orphans:
        found = await orphans.lookup("req_1")
        assert (found.completion_tokens, found.prompt_tokens) == (15, 40)
        assert not found.finished  # one still runs; the one of an earlier boot is over


async def test_nobody_knows_it_only_if_everybody_says_so(tmp_path):
    async with asked(tmp_path, [], []) as orphans:
        found = await orphans.lookup("req_1")
        assert (found.boot, found.finished) == ("", True)
    async with asked(tmp_path, [], extra=("unix:/nowhere",)) as orphans:
        assert await orphans.lookup("req_1") is None
    nobody = Orphans(Fleet(Static(()), gateway="g"))
    assert await asyncio.wait_for(nobody.lookup("req_1"), 1) is None


def test_the_books_too_hold_a_prompt_against_the_engine_that_was_asked_last():
    name = f"req_{'0' * 32}"
    lost, kept = Counts(name, "boot-0", 10, 7, False), Counts(f"{name}+1", "boot-1", 10, 5, True)
    part = Counts(f"{name}-1+2", "boot-1", 10, 1, True)
    for pages in ([[lost], [kept]], [[kept], [lost]]):
        found = merged(pages)
        assert found == {name: Counts(name, "boot-1", 10, 5, True)}
    assert merged([[lost], [kept, part]])[name].completion_tokens == 6
