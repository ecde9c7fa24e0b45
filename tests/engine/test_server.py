"""The engine over real sockets: greetings, credits, slow readers, disconnects, draining."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.core import Core
from engine.counts import CountRecord
from engine.errors import DeviceLost
from engine.metrics import EngineMetrics
from engine.pages import Kind
from engine.protocol import (
    VERSION,
    Finish,
    Goodbye,
    Hello,
    Load,
    RefusalCode,
    Submit,
    ToEngine,
    ToGateway,
    Welcome,
)
from engine.server import Server
from engine.stream import EngineLost, RequestRefused
from engine.tls import NO_GUARD, Guard
from engine.transport import Connection, ConnectionLost, dial
from tests.engine.harness import config, submit
from tests.engine.pages_of_metrics import Page
from tests.fakes.clock import until
from tests.fakes.runner import Packed, Parts, alone, build


class Running:
    """An engine of fakes, its loop and its wire in threads of this process."""

    def __init__(
        self, address: str, parts: Parts, *, guard: Guard = NO_GUARD, **settings: object
    ) -> None:
        self.config = config(listen=address, drain_timeout_s=2.0, **settings)
        self.record = CountRecord(None)
        self.parts = parts
        parts.runner.keep_plans = False
        metrics = EngineMetrics(parts.built.num_pages)
        self.core: Core[Packed] = Core(
            self.config, parts.built, boot="boot-1", record=self.record, metrics=metrics
        )
        built = parts.built
        self.server = Server(
            address,
            Welcome("e1", "boot-1", built.base, built.max_model_len, 4, self.config.credits),
            self.core.inbox,
            self.core.outbox,
            metrics_text=metrics.text,
            max_write_buffer=self.config.max_write_buffer,
            guard=guard,
        )
        self.error: Exception | None = None
        self.loop = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.core.run()
        except DeviceLost as error:
            self.error = error
        finally:
            self.server.stop()

    def __enter__(self) -> "Running":
        self.server.start()
        self.loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.core.drain()
        self.loop.join(10)
        assert not self.loop.is_alive()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/e.sock"


@pytest.fixture
def engine(address: str) -> Running:
    parts = build(num_pages=64, max_model_len=200)
    parts.runner.pass_seconds = 0.001
    return Running(address, parts)


@pytest.fixture
async def client(engine: Running) -> AsyncIterator[EngineClient]:
    with engine:
        async with await connect(engine) as connected:
            yield connected


async def connect(engine: Running) -> EngineClient:
    return await EngineClient.connect(engine.config.listen, gateway="gw")


async def greet(address: str, message: ToEngine) -> Connection[ToGateway, ToEngine]:
    connection: Connection[ToGateway, ToEngine] = await dial(address, ToGateway)
    await connection.send(message)
    return connection


async def generate(client: EngineClient, message: Submit) -> list[int]:
    async with client.generate(message) as stream:
        return [token async for output in stream for token in output.tokens]


async def test_many_requests_of_many_adapters_come_out_as_if_alone(client: EngineClient) -> None:
    names = ["", "a1", "b2", "c3"]
    prompts = [[3 + i, 4 + i] for i in range(16)]
    results = await asyncio.gather(
        *(
            generate(client, submit(f"r{i}", prompt, 20, adapter=names[i % 4]))
            for i, prompt in enumerate(prompts)
        )
    )
    for i, (prompt, tokens) in enumerate(zip(prompts, results, strict=True)):
        assert tokens == alone(prompt, 20, seed=7, adapter=names[i % 4])[0]


async def test_welcome_says_what_is_served(client: EngineClient) -> None:
    welcome = client.welcome
    assert (welcome.engine, welcome.boot, welcome.max_model_len) == ("e1", "boot-1", 200)
    assert welcome.credits == 8 + 1024 + 64


async def test_load_comes_at_once_and_on_change(client: EngineClient) -> None:
    await until(lambda: client.load is not None)
    assert client.load == Load(0, 0, 64, 64, [])
    await generate(client, submit(adapter="a2"))
    await until(lambda: client.load == Load(0, 0, 64, 64, ["a2"]))


async def test_metrics_and_counts_are_answered(client: EngineClient) -> None:
    await generate(client, submit(max_tokens=5))
    text = await client.metrics()
    assert "loratorio_engine_passes_total" in text
    assert Page(text).value("vllm:generation_tokens_total") == 5
    (counts,) = await client.counts(["r1"])
    assert (counts.prompt_tokens, counts.completion_tokens, counts.finished) == (3, 5, True)


async def test_leaving_early_frees_every_page_and_the_count_is_final(
    client: EngineClient, engine: Running
) -> None:
    async with client.generate(submit(max_tokens=190)) as stream:
        async for _ in stream:
            break
        usage = await stream.cancel(timeout_s=5)
    assert engine.core.pool.holdings(Kind.KV) == 0
    assert 'loratorio_engine_pages{held_by="kv"} 0.0' in await client.metrics()
    (counts,) = await client.counts(["r1"])
    assert counts.completion_tokens == usage.completion_tokens < 190
    assert counts.finished


async def test_a_vanished_gateway_leaves_nothing_behind(
    client: EngineClient, engine: Running
) -> None:
    other = await connect(engine)
    for i in range(5):
        other.start(other.generate(submit(f"x{i}", max_tokens=190)))
    await until(lambda: engine.core.scheduler.running == 5)
    await other.close()
    await until(lambda: engine.core.scheduler.running == 0)
    assert engine.core.pool.holdings(Kind.KV) == 0
    assert len(await generate(client, submit("mine"))) == 4


async def test_refusals_reach_their_stream(client: EngineClient, engine: Running) -> None:
    engine.parts.host.missing.add("m1")
    for message, code in (
        (submit("a", adapter="m1"), RefusalCode.ADAPTER_MISSING),
        (submit("b", tokens=[5] * 200), RefusalCode.PROMPT_TOO_LONG),
        (submit("c", tokens=[]), RefusalCode.INVALID),
    ):
        with pytest.raises(RequestRefused) as caught:
            await generate(client, message)
        assert caught.value.code is code


async def test_credits_are_enforced_against_a_gateway_that_ignores_them(address: str) -> None:
    parts = build()
    parts.runner.pass_seconds = 0.005
    with Running(address, parts, max_num_seqs=1, max_waiting=1):
        connection = await greet(address, Hello("gw"))
        for i in range(4):
            await connection.send(submit(f"r{i}", max_tokens=30, tenant=f"t{i}"))
        seen: list[ToGateway] = []
        async with asyncio.timeout(5):
            while not any(getattr(message, "code", None) for message in seen):
                seen.append(await connection.receive())
        refused = seen[-1]
        assert refused.code is RefusalCode.QUEUE_FULL  # type: ignore[union-attr]
        assert "this engine takes 2 in all" in refused.detail  # type: ignore[union-attr]
        connection.abort()


async def test_an_engine_whose_device_is_lost_fails_every_client_at_once(engine: Running) -> None:
    with engine:
        client = await connect(engine)
        async with client.generate(submit(max_tokens=190)) as stream:
            await anext(aiter(stream))
            engine.parts.runner.broken = lambda plan: DeviceLost("the card fell off the bus")
            with pytest.raises(EngineLost):
                async for _ in stream:
                    pass
        assert isinstance(engine.error, DeviceLost)
        await client.close()


async def test_draining_lets_open_streams_end_and_says_goodbye(engine: Running) -> None:
    with engine:
        client = await connect(engine)
        async with client.generate(submit(max_tokens=60)) as stream:
            await anext(aiter(stream))
            client.drain()
            with pytest.raises(RequestRefused, match="draining"):
                await generate(client, submit("late"))
            outputs = [output async for output in stream]
        assert outputs[-1].finish is Finish.LENGTH
        await client.wait_lost()
        assert client.goodbye == "drained"
        await client.close()


async def test_a_slow_reader_is_dropped_and_others_are_not_delayed(address: str) -> None:
    # long enough that the loop, which may run far ahead of the wire, cannot finish it first
    parts = build(num_pages=40_000, max_model_len=20_000)
    with Running(address, parts, max_num_seqs=9, max_write_buffer=20_000) as engine:
        fast = await connect(engine)
        slow = await greet(address, Hello("slow"))
        assert isinstance(await slow.receive(), Welcome)
        slow.transport.pause_reading()
        for i in range(8):
            await slow.send(submit(f"s{i}", max_tokens=15_000))
        assert len(await generate(fast, submit("f", max_tokens=30))) == 30
        await until(lambda: all(engine.record.read(f"s{i}").finished for i in range(8)), 20)
        assert all(0 < engine.record.read(f"s{i}").completion_tokens < 15_000 for i in range(8))
        assert len(await generate(fast, submit("g", max_tokens=30))) == 30
        assert engine.core.pool.holdings(Kind.KV) == 0
        await fast.close()
        slow.abort()


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        pytest.param(Hello("gw", VERSION + 1), "version", id="another_version"),
        pytest.param(submit(), "expected Hello, got Submit", id="no_greeting"),
    ],
)
async def test_a_wrong_greeting_is_told_why_and_closed(
    engine: Running, greeting: ToEngine, reason: str
) -> None:
    with engine:
        connection = await greet(engine.config.listen, greeting)
        answer = await connection.receive()
        assert isinstance(answer, Goodbye)
        assert reason in answer.reason
        with pytest.raises(ConnectionLost):
            await connection.receive()
        await connection.close()


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\xff\xff\xff\xff", id="a_frame_too_large"),
        pytest.param(b"\x03\x00\x00\x00abc", id="not_messagepack"),
        pytest.param(b"\x02\x00\x00\x00\x91\xa0", id="no_such_message"),
    ],
)
async def test_junk_ends_its_own_connection_only(
    client: EngineClient, address: str, junk: bytes
) -> None:
    connection = await greet(address, Hello("junk"))
    assert isinstance(await connection.receive(), Welcome)
    connection.transport.write(junk)
    with pytest.raises(ConnectionLost):  # noqa: PT012
        while True:
            await connection.receive()
    assert len(await generate(client, submit())) == 4
    await connection.close()


async def test_two_requests_of_one_name_end_the_connection(
    client: EngineClient, address: str
) -> None:
    connection = await greet(address, Hello("clumsy"))
    for _ in range(2):
        await connection.send(submit("same", max_tokens=100))
    with contextlib.suppress(ConnectionLost):
        async with asyncio.timeout(5):
            while not isinstance(answer := await connection.receive(), Goodbye):
                pass
    assert answer == Goodbye("request same is already open")
    await connection.close()


async def test_a_tcp_address_works_the_same() -> None:
    parts = build()
    with Running("tcp:127.0.0.1:0", parts) as engine:
        client = await EngineClient.connect(engine.server.address, gateway="gw")
        assert await generate(client, submit()) == alone([5, 6, 7], 4, seed=7)[0]
        await client.close()


def test_an_address_that_cannot_be_listened_on_is_an_error(tmp_path: Path) -> None:
    running = Running(f"unix:{tmp_path}/no/such/dir/e.sock", build())
    with pytest.raises(OSError, match="No such file"):
        running.server.start()
