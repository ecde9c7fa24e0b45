"""A gateway's client: multiplexing, early leave, refusals, and an engine that dies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import uvloop

from engine.address import AddressInvalid
from engine.client import EngineClient
from engine.protocol import (
    AdapterRef,
    Cancel,
    Finish,
    Goodbye,
    Grant,
    Output,
    Prefetch,
    RefusalCode,
    Submit,
    ToEngine,
    ToGateway,
    Usage,
)
from engine.stream import EngineLost, RequestRefused
from engine.transport import Connection, ConnectionLost, listen
from tests.fakes.clock import until
from tests.fakes.engine import EOS, FakeEngine

Engine = Connection[ToEngine, ToGateway]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(f"unix:{tmp_path}/e.sock", credits=4) as fake:
        yield fake


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[EngineClient]:
    async with await EngineClient.connect(engine.address, gateway="gw") as connected:
        yield connected


def submit(request: str = "r1", *, max_tokens: int = 4, n: int = 1, **more: object) -> Submit:
    fields = {"tenant": "t", "tokens": [5, 6, 7], "max_tokens": max_tokens, "n": n, **more}
    return Submit(request, **fields)  # type: ignore[arg-type]


async def collect(client: EngineClient, message: Submit) -> list[Output]:
    async with client.generate(message) as stream:
        return [output async for output in stream]


def tokens(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


async def test_yields_tokens_in_order_and_one_terminal_with_usage(client: EngineClient) -> None:
    outputs = await collect(client, submit(max_tokens=4))
    assert tokens(outputs) == [5, 6, 7, 5]
    assert [output.finish for output in outputs if output.finish] == [Finish.LENGTH]
    assert outputs[-1].usage == Usage(3, 0, 4)


async def test_many_requests_share_a_connection_without_mixing(client: EngineClient) -> None:
    messages = [submit(f"r{i}", tokens=[10 * i + 1], max_tokens=5) for i in range(4)]
    results = await asyncio.gather(*(collect(client, message) for message in messages))
    assert [tokens(result) for result in results] == [[10 * i + 1] * 5 for i in range(4)]


async def test_a_stream_of_several_choices_ends_after_the_last(client: EngineClient) -> None:
    async with client.generate(submit(n=3)) as stream:
        outputs = [output async for output in stream]
    assert sorted(output.index for output in outputs if output.finish) == [0, 1, 2]
    assert stream.usage == Usage(3, 0, 12)


async def test_a_refusal_is_raised_with_code_and_retry(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.knobs.refuse = RefusalCode.QUEUE_FULL
    with pytest.raises(RequestRefused) as caught:
        await collect(client, submit())
    assert (caught.value.code, caught.value.retry_ms) == (RefusalCode.QUEUE_FULL, 50)
    assert client.open == 0


async def test_leaving_early_cancels_and_frees_the_credit(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.knobs.token_delay_s = 0.005
    async with client.generate(submit(max_tokens=500)) as stream:
        async for _ in stream:
            break
    await until(lambda: client.open == 0)
    assert Cancel("r1") in engine.heard
    assert engine.record["r1"].completion_tokens < 500


async def test_leaving_by_task_cancellation_cancels(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.knobs.hang_after = 1
    task = asyncio.create_task(collect(client, submit()))
    await until(lambda: engine.open == 1)
    task.cancel()
    await until(lambda: engine.open == 0)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancel_waits_for_the_engines_count(client: EngineClient, engine: FakeEngine) -> None:
    engine.knobs.token_delay_s = 0.002
    async with client.generate(submit(max_tokens=500)) as stream:
        async for _ in stream:
            break
        usage = await stream.cancel(timeout_s=2)
    assert usage.completion_tokens == engine.record["r1"].completion_tokens >= 1
    assert usage.prompt_tokens == 3


async def test_cancel_gives_up_after_its_time_limit(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.knobs.hang_after, engine.knobs.deaf = 0, True
    async with client.generate(submit()) as stream:
        with pytest.raises(TimeoutError):
            await stream.cancel(timeout_s=0.02)


async def test_cancel_of_a_finished_request_only_reports(
    client: EngineClient, engine: FakeEngine
) -> None:
    async with client.generate(submit()) as stream:
        await until(lambda: stream.finished)
        assert (await stream.cancel(timeout_s=1)).completion_tokens == 4
        assert tokens([output async for output in stream]) == [5, 6, 7, 5]
    assert not any(isinstance(message, Cancel) for message in engine.heard)


async def test_a_dying_engine_fails_every_stream_after_what_had_arrived(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.knobs.die_after = 2
    async with client.generate(submit(max_tokens=9)) as first:
        received = []
        with pytest.raises(EngineLost):  # noqa: PT012
            async for output in first:
                received += output.tokens
    assert received == [5, 6]
    assert isinstance(await client.wait_lost(), EngineLost)
    with pytest.raises(EngineLost):
        await collect(client, submit("r2"))
    with pytest.raises(EngineLost):
        await client.metrics()


async def test_metrics_and_counts_waiting_when_the_engine_dies_are_failed(tmp_path: Path) -> None:
    async def welcome_then_vanish(connection: Engine) -> None:
        await connection.receive()
        await connection.send(FakeEngine("unix:unused").welcome)
        await connection.receive()
        connection.abort()

    async with await listen(f"unix:{tmp_path}/v.sock", ToEngine, welcome_then_vanish):
        client = await EngineClient.connect(f"unix:{tmp_path}/v.sock", gateway="gw")
        with pytest.raises(EngineLost):
            await client.counts(["r1"])
        await client.close()


async def test_credits_are_kept_without_asking_the_engine(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.knobs.hang_after = 0
    for i in range(4):
        client.start(client.generate(submit(f"r{i}")))
    with pytest.raises(RequestRefused) as caught:
        await collect(client, submit("r9"))
    assert caught.value.code is RefusalCode.QUEUE_FULL
    assert "4 requests" in caught.value.detail


async def test_two_open_requests_of_one_name_are_a_mistake(client: EngineClient) -> None:
    async with client.generate(submit()):
        with pytest.raises(ValueError, match="r1"):
            await collect(client, submit())


async def test_grants_keep_a_request_going(client: EngineClient, engine: FakeEngine) -> None:
    received: list[int] = []
    async with client.generate(submit(max_tokens=10, granted=3)) as stream:
        async for output in stream:
            received += output.tokens
            if output.wants:
                stream.grant(output.wants)
    assert received == [5, 6, 7, 5, 6, 7, 5, 6, 7, 5]
    assert any(isinstance(message, Grant) for message in engine.heard)


async def test_without_a_grant_the_request_ends(client: EngineClient, engine: FakeEngine) -> None:
    engine.knobs.grant_timeout_s = 0.01
    outputs = await collect(client, submit(max_tokens=10, granted=3))
    assert outputs[-1].finish is Finish.GRANT
    assert len(tokens(outputs)) == 3


async def test_stop_tokens_are_counted_but_not_delivered(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.knobs.script = lambda _: [8, 9, EOS, 8]
    outputs = await collect(client, submit(max_tokens=9))
    assert tokens(outputs) == [8, 9]
    assert (outputs[-1].finish, outputs[-1].stop_token) == (Finish.STOP, EOS)
    assert outputs[-1].usage == Usage(3, 0, 3)


async def test_load_metrics_and_counts_arrive(client: EngineClient, engine: FakeEngine) -> None:
    engine.resident.append("d1")
    await collect(client, submit())
    assert client.load is not None
    assert client.load.resident == ["d1"]
    assert "loratorio_engine_open" in await client.metrics()
    known, unknown = await client.counts(["r1", "r2"])
    assert (known.completion_tokens, known.finished) == (4, True)
    assert unknown == type(unknown)("r2")


async def test_prefetch_and_drain_are_told(client: EngineClient, engine: FakeEngine) -> None:
    client.prefetch(AdapterRef("d1", 8))
    client.drain()
    await until(lambda: client.goodbye == "drained")
    assert Prefetch(AdapterRef("d1", 8)) in engine.heard


async def test_an_unreachable_engine_is_lost_from_the_start(tmp_path: Path) -> None:
    with pytest.raises(EngineLost, match="nobody"):
        await EngineClient.connect(f"unix:{tmp_path}/nobody.sock", gateway="gw")


async def test_a_malformed_address_is_named() -> None:
    with pytest.raises(AddressInvalid, match="http"):
        await EngineClient.connect("http://x", gateway="gw")


async def test_an_engine_of_another_version_says_why(tmp_path: Path) -> None:
    async def refuse(connection: Engine) -> None:
        await connection.receive()
        await connection.send(Goodbye("this engine speaks version 7"))

    async with await listen(f"unix:{tmp_path}/v.sock", ToEngine, refuse):
        with pytest.raises(EngineLost, match="version 7"):
            await EngineClient.connect(f"unix:{tmp_path}/v.sock", gateway="gw")


async def test_an_engine_that_never_answers_hello_is_given_up(tmp_path: Path) -> None:
    async def ignore(connection: Engine) -> None:
        await connection.receive()
        with pytest.raises(ConnectionLost):
            await connection.receive()

    async with await listen(f"unix:{tmp_path}/v.sock", ToEngine, ignore):
        with pytest.raises(EngineLost, match=r"0\.02 s"):
            await EngineClient.connect(f"unix:{tmp_path}/v.sock", gateway="gw", timeout_s=0.02)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_engine_that_dies_is_lost_to_all_who_ask_in_that_moment(tmp_path, new_loop):
    """The transport knows that it is closed before the reader hears of it; uvloop's then raises
    what is no connection's error. A gateway runs on uvloop."""

    async def ask_beside_its_death() -> set[str]:
        address = f"unix:{tmp_path}/e.sock"
        async with FakeEngine(address) as engine:
            client = await EngineClient.connect(address, gateway="g")
            engine.die()
            await asyncio.sleep(0)
            for number in range(5, 10):  # what is written now finds the connection broken
                with contextlib.suppress(EngineLost):
                    client.start(client.generate(Submit(f"r{number}", "t", [1], 1)))

            async def one(number: int) -> str:
                try:
                    async with client.generate(Submit(f"r{number}", "t", [1], 1)) as stream:
                        await stream.batch()
                except Exception as error:
                    return type(error).__name__
                return "answered"

            said = await asyncio.gather(*map(one, range(5)))
            await client.close()
            return set(said)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(ask_beside_its_death()) == {"EngineLost"}


async def test_an_ear_hears_what_comes_together_while_somebody_waits(
    client: EngineClient,
) -> None:
    stream, heard = client.generate(submit()), list[list[int]]()

    def hear(outputs: Sequence[Output]) -> bool:
        heard.append(tokens(outputs))
        return heard[-1] != [4]

    def deliver(*numbers: int, finish: Finish | None = None, wants: int | None = None) -> None:
        for number in numbers[:-1]:
            stream.deliver(Output("r1", [number]), more=True)
        stream.deliver(Output("r1", [numbers[-1]], finish, wants=wants))

    async def waiting() -> asyncio.Task[list[Output]]:
        task = asyncio.create_task(stream.batch())
        await until(lambda: stream.awaited)
        return task

    stream.ear = hear
    deliver(1)  # nobody waits
    assert tokens(await stream.batch()) == [1]
    task = await waiting()
    deliver(2)
    deliver(3, 9)
    deliver(4)  # which it leaves
    assert tokens(await task) == [4]
    task = await waiting()
    deliver(5, wants=300)
    assert tokens(await task) == [5]
    task = await waiting()
    deliver(6)
    deliver(7, 8, finish=Finish.LENGTH)
    assert tokens(await task) == [7, 8]
    assert heard == [[2], [3, 9], [4], [6]]


async def test_what_an_ear_fails_with_is_raised_where_its_outputs_are_awaited(
    client: EngineClient,
) -> None:
    stream = client.generate(submit())

    def hear(outputs: Sequence[Output]) -> bool:
        raise ZeroDivisionError

    stream.ear = hear
    waiting = asyncio.create_task(stream.batch())
    await until(lambda: stream.awaited)
    stream.deliver(Output("r1", [1]))
    with pytest.raises(ZeroDivisionError):
        await waiting
