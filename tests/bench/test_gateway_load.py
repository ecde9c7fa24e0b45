"""The benchmark's clients tell whole answers and streams apart, time them, and fail loudly."""

import pytest

from bench.gateway.load import LoadFailed, chat, closed_loop, open_loop, percentile, request
from bench.gateway.peers import bare, plain
from tests.bench.listening import listening


@pytest.fixture(params=[bare, plain], ids=["asgi", "fastapi"])
async def port(request):
    application = request.param if request.param is bare else plain()
    async with listening(application) as port:
        yield port


async def test_answers_are_timed_to_their_first_and_last_byte(port):
    body = chat(16, stream=True)
    times = await open_loop(port, request("/stream/64", "key", body), rate=200, seconds=0.1)
    assert len(times) == 20
    assert all(0 < each.first < each.last < 5 for each in times)
    await closed_loop(port, request("/", "key", body), 20, connections=4)


async def test_a_refusal_ends_the_measurement(port):
    with pytest.raises(LoadFailed):
        await closed_loop(port, request("/stream/none", "key", b"{}"), 4, connections=2)


def test_percentiles_are_values_that_were_measured():
    values = [float(n) for n in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (
        51,
        100,
        100,
    )
