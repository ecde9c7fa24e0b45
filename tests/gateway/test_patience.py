"""Many waits, one timer: each ends in time, and no other with it."""

import asyncio
import socket
import time

import pytest
import uvloop

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


def answer_while_nobody_has_a_turn(ends: list[socket.socket]) -> None:
    for end in ends:
        end.send(b"x")
    time.sleep(0.2)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_came_while_the_loop_was_busy_is_not_late(new_loop) -> None:  # type: ignore[no-untyped-def]
    patience = Patience(0.05)

    async def read(reader: asyncio.StreamReader) -> bytes:
        with patience.wait():
            return await reader.readexactly(1)

    async def play() -> list[bytes]:
        pairs = [socket.socketpair() for _ in range(5)]
        opened = [await asyncio.open_connection(sock=ours) for ours, _ in pairs]
        reads = [asyncio.create_task(read(reader)) for reader, _ in opened]
        await asyncio.sleep(0.01)
        answer_while_nobody_has_a_turn([theirs for _, theirs in pairs])
        found = await asyncio.wait_for(asyncio.gather(*reads), 20)
        for (_, writer), (_, theirs) in zip(opened, pairs, strict=True):
            writer.close()
            theirs.close()
        return found

    loop = new_loop()
    assert loop.run_until_complete(play()) == [b"x"] * 5
    loop.close()
