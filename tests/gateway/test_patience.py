"""Many waits, one timer: each ends in time, and no other with it."""

import asyncio

import pytest

from gateway.patience import Patience


async def test_a_wait_that_lasts_too_long_ends_with_a_timeout_of_its_own() -> None:
    patience = Patience(0.05)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError), patience.wait():
        await asyncio.sleep(5)
    assert 0.04 < asyncio.get_running_loop().time() - began < 1
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    await asyncio.sleep(0)  # nothing of it is left over


async def test_waits_that_end_in_time_are_left_alone_while_a_later_one_is_not() -> None:
    patience = Patience(0.1)

    async def one(seconds: float) -> str:
        try:
            with patience.wait():
                await asyncio.sleep(seconds)
        except TimeoutError:
            return "late"
        return "done"

    found = await asyncio.gather(*(one(s) for s in (0.01, 0.5, 0.02, 0.5, 0.0)))
    assert found == ["done", "late", "done", "late", "done"]
    for _ in range(3):
        assert await one(0.0) == "done"
    assert len(patience._waits) <= 1


async def test_a_cancellation_from_outside_stays_one() -> None:
    patience = Patience(0.05)

    async def work() -> None:
        with patience.wait():
            await asyncio.sleep(5)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_wait_around_another_ends_both() -> None:
    outer, inner = Patience(0.03), Patience(5.0)
    with pytest.raises(TimeoutError), outer.wait(), inner.wait():
        await asyncio.sleep(1)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
