"""One connection for all: replies find who asked, whatever else goes wrong on it."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ResponseError

from gateway import redis
from gateway.config import Secret
from gateway.redis_line import Line


@pytest.fixture
async def line(redis_url):
    found = Line(redis.connect(Secret(redis_url), timeout_s=1.0), patience_s=0.3)
    yield found
    await found.close()


async def test_many_at_once_each_get_their_own_reply(line):
    asked = [line.execute_command("ECHO", f"n{number}") for number in range(1000)]
    assert await asyncio.gather(*asked) == [f"n{number}".encode() for number in range(1000)]


async def test_an_error_is_of_the_command_that_made_it(line):
    first, wrong, last = await asyncio.gather(
        line.execute_command("ECHO", "a"),
        line.execute_command("NO SUCH COMMAND"),
        line.execute_command("ECHO", "é"),
        return_exceptions=True,
    )  # fmt: skip
    assert (first, last) == (b"a", "é".encode())
    assert isinstance(wrong, ResponseError)


async def test_who_stops_waiting_leaves_the_others_their_replies(line):
    await line.execute_command("DEL", "nothing")
    slow = asyncio.create_task(line.execute_command("BLPOP", "nothing", "0.1"))
    after = asyncio.create_task(line.execute_command("ECHO", "after"))
    await asyncio.sleep(0.02)
    slow.cancel()
    assert await after == b"after"


async def test_a_lost_connection_is_told_to_all_and_dialled_again(line):
    name = await line.execute_command("CLIENT", "ID")
    waiting = [asyncio.create_task(line.execute_command("BLPOP", "nothing", "5")) for _ in range(3)]
    await asyncio.sleep(0.02)
    other = redis.connect(line_url(line), timeout_s=1.0)
    await other.client_kill_filter(_id=name)
    await other.aclose()
    for each in waiting:
        with pytest.raises(Lost):
            await each
    assert await line.execute_command("ECHO", "again") == b"again"


async def test_a_connection_whose_reply_is_overdue_is_given_up(line):
    before = await line.execute_command("CLIENT", "ID")
    late = asyncio.create_task(line.execute_command("BLPOP", "nothing", "5"))
    await asyncio.sleep(0.4)
    assert await line.execute_command("CLIENT", "ID") != before
    with pytest.raises(Lost, match="no reply"):
        await late


async def test_nobody_there_is_a_lost_connection():
    line = Line(redis.connect(Secret("redis://127.0.0.1:1"), timeout_s=1.0), patience_s=0.3)
    with pytest.raises(Lost):
        await line.execute_command("ECHO", "a")


def line_url(line):
    facts = line._pool.connection_kwargs
    return Secret(f"redis://{facts['host']}:{facts['port']}")
