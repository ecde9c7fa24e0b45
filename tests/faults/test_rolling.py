"""A rolling upgrade of every process, one after the other, under load: nobody notices.

As an orchestrator does it: what is to end gets no new connections and a SIGTERM, finishes what it
has, and its successor on the same data is used once it is ready. ``make test-chaos`` replaces each
several times; here one gateway and one engine are.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator

import pytest

from tests.faults.pair import Pair, pair
from tests.faults.rig import LONGEST_S, Rig
from tests.stack import Program

ROLLS = int(os.environ.get("ROLLS", "1"))
CLIENTS = 6
PATIENT_S = 30.0  # a busy machine makes no engine a lost one


class Balancer:
    """Clients that ask whichever gateway is in rotation."""

    def __init__(self, both: Pair) -> None:
        self._both = both
        self._rotation = list(both.rigs)

    @contextlib.asynccontextmanager
    async def load(self, rng: random.Random) -> AsyncIterator[None]:
        ending = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            clients = {id(r): await stack.enter_async_context(r.client()) for r in self._both.rigs}

            async def one() -> None:
                while not ending.is_set():
                    rig = rng.choice(self._rotation)
                    leave = rng.choice([None, None, None, 3])
                    await rig.ask(clients[id(rig)], rng.randrange(8, 60), leave_after=leave)

            tasks = [asyncio.create_task(one()) for _ in range(CLIENTS)]
            try:
                yield
            finally:
                ending.set()
                await asyncio.wait_for(asyncio.gather(*tasks), LONGEST_S)

    async def replace(self, rig: Rig) -> int | None:
        """The rig's gateway. Returns what the old one exited with."""
        self._rotation.remove(rig)
        code = await ended(rig.gateway)
        await rig.start(rig.gateway)
        await rig.ready()
        self._rotation.append(rig)
        return code


async def ended(program: Program) -> int | None:
    await program.end(signal.SIGTERM)
    assert program.process is not None
    return program.process.returncode


@pytest.mark.slow
async def test_every_process_is_replaced_and_no_request_fails(tmp_path, redis_url, postgres):
    url = await asyncio.to_thread(postgres.create)
    async with pair(tmp_path, redis_url, url, silence_s=PATIENT_S) as both:
        balancer = Balancer(both)
        await both.all_up()
        async with balancer.load(random.Random(1)):
            for number in range(ROLLS):
                rig = both.rigs[number % 2]
                await rig.streaming()
                assert await balancer.replace(rig) == 0, rig.tail()
                await rig.streaming()
                assert await ended(rig.engine) == 0, rig.tail()
                await rig.streaming()  # by the other engine
                await rig.start(rig.engine)
                await both.all_up()
        assert [rig.refused for rig in both.rigs] == [[], []]
        await both.verify()
