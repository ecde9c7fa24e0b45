"""A tenant with many uploads keeps nobody waiting longer than one of them takes."""

import asyncio

from gateway.adapter_api.turns import Turns


async def test_nobody_has_a_second_turn_before_anothers_first() -> None:
    turns, order = Turns(), list[str]()

    async def work(name: str) -> None:
        async with turns.take(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*map(work, ["a1", "a2", "a3", "b1", "c1", "b2"]))
    assert order[:3] == ["a1", "b1", "c1"]
    assert sorted(order) == ["a1", "a2", "a3", "b1", "b2", "c1"]
    assert [name for name in order if name[0] == "a"] == ["a1", "a2", "a3"]


async def test_one_who_gives_up_or_fails_leaves_the_turn_to_the_next() -> None:
    turns, running = Turns(), asyncio.Event()

    async def fail() -> None:
        async with turns.take("a"):
            running.set()
            await asyncio.sleep(0)
            raise ValueError

    async def wait() -> str:
        async with turns.take("a"):
            return "done"

    failing, given_up, last = (asyncio.create_task(each()) for each in (fail, wait, wait))
    await running.wait()
    given_up.cancel()
    assert await asyncio.wait_for(last, 5) == "done"
    assert isinstance((await asyncio.gather(failing, return_exceptions=True))[0], ValueError)
