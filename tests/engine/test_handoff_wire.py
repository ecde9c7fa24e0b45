"""Pages cross TCP bit by bit, to whoever was promised them and nobody else."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bench.alone import LoneEngine, adapter_ref
from engine.config import Device, Dtype, EngineConfig, KvCacheDtype
from engine.core import Heard
from engine.handoff.frames import VERSION, Challenge, Failed, Offer
from engine.handoff.sockets import dial
from engine.handoff.stream import FrameStream, HandoffFailed
from engine.protocol import AdapterRef, Output, Role, Sampling, Step, Submit, Ticket
from tests.certificates import Authority
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

pytestmark = pytest.mark.slow

SHAPE = Shape(hidden=128, inner=160, heads=4, kv_heads=2, head_dim=32, layers=2, vocab=256)
PROMPT = [10 + i * 7 % 190 for i in range(150)]
LISTEN = "handoff_listen"
SECRET = b"0123456789abcdef"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), SHAPE, Layout("gptq", 32)).path)


def engine(path: str, **changes: object) -> LoneEngine:
    settings: dict[str, object] = {
        "model": path, "device": Device.CPU, "dtype": Dtype.FLOAT32, "deterministic": True,
        "page_tokens": 16, "pool_bytes": 4 << 20, "max_model_len": 256, "max_num_seqs": 6,
        "max_num_batched_tokens": 32, "threads": 1, "handoff_timeout_s": 5.0,
    }  # fmt: skip
    return LoneEngine(EngineConfig(**{**settings, **changes}))  # type: ignore[arg-type]


class Two:
    """An engine that computes prompts and one that goes on from them, in this thread."""

    def __init__(self, path: str, **changes: object) -> None:
        giving = {name: value for name, value in changes.items() if name != LISTEN}
        self.giver = engine(path, role=Role.PREFILL, **giving)
        self.taker = engine(path, role=Role.DECODE, **{LISTEN: "tcp:127.0.0.1:0", **changes})
        self.heard: dict[str, list[Output]] = {}
        self.given: dict[str, list[Output]] = {}

    def close(self) -> None:
        for lone in (self.giver, self.taker):
            assert lone.wire is not None
            lone.wire.stop()

    def submit(self, name: str, prompt: list[int], adapter: AdapterRef | None = None) -> None:
        for lone, to, count in (
            (self.taker, "", 12),
            (self.giver, self.taker.wire.takes if self.taker.wire else "", 1),
        ):
            lone.core.inbox.put(
                Heard(0, wanted(name, prompt, count, adapter, Ticket(f"t-{name}", SECRET, to)))
            )

    def run(self, *, until_s: float = 20.0) -> None:
        end = time.monotonic() + until_s
        while (
            self.giver.core.book or self.taker.core.book or time.monotonic() < end - until_s + 0.1
        ):
            assert time.monotonic() < end, "still open"
            self.step()

    def step(self) -> None:
        for lone, into in ((self.giver, self.given), (self.taker, self.heard)):
            lone.core.step()
            lone.core.seating.check()
            for said in lone.core.outbox.take():
                if isinstance(said.message, Step):
                    for output in said.message.outputs:
                        into.setdefault(output.request, []).append(output)

    def took(self, outcome: str) -> float:
        name = "loratorio_engine_handoffs_total"
        return self.metric(self.taker, name, side="took", outcome=outcome)

    def metric(self, lone: LoneEngine, name: str, **labels: str) -> float:
        return lone.core._metrics.registry.get_sample_value(name, labels) or 0.0


def wanted(
    name: str, prompt: list[int], count: int, adapter: AdapterRef | None, ticket: Ticket | None
) -> Submit:
    return Submit(
        name, "tenant", prompt, count, Sampling(temperature=0.8, seed=11), adapter,
        ignore_eos=True, logprobs=2, ticket=ticket,
    )  # fmt: skip


def facts(outputs: list[Output]) -> list[object]:
    return [
        (out.tokens, [(p.logprob, p.top) for p in out.logprobs or ()])
        for out in outputs
        if out.tokens
    ]


@pytest.fixture(params=["wide", "narrow", "wide with TLS"])
def two(path: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Two]:
    settings: dict[str, object] = {}
    if request.param == "narrow":
        settings["kv_cache_dtype"] = KvCacheDtype.FP8
    if request.param == "wide with TLS":
        authority = Authority(tmp_path)
        pair = authority.issue("engine")
        settings = {
            LISTEN: "tls:127.0.0.1:0", "ssl_certfile": str(pair.certificate),
            "ssl_keyfile": str(pair.key), "ssl_ca_certs": str(authority.file),
        }  # fmt: skip
    made = Two(path, **settings)
    yield made
    made.close()


def test_answers_are_bit_equal_to_one_engine_and_only_one_computes_the_prompt(
    path: str, two: Two
) -> None:
    alone = engine(path, kv_cache_dtype=two.taker.core._config.kv_cache_dtype)
    jobs = {"plain": None, "a": adapter_ref(1, 8), "b": adapter_ref(2, 4)}
    expected = {}
    for name, ref in jobs.items():
        alone.core.inbox.put(Heard(0, wanted(name, PROMPT, 12, ref, None)))
        outputs: list[Output] = []
        while alone.core.step() or alone.core.book:
            for said in alone.core.outbox.take():
                outputs += said.message.outputs if isinstance(said.message, Step) else ()
        expected[name] = facts(outputs)
        two.submit(name, PROMPT, ref)
    two.run()
    assert {name: facts(two.heard[name]) for name in jobs} == expected
    computed = "loratorio_engine_prompt_tokens_total"
    assert two.metric(two.giver, computed) == 3 * len(PROMPT)
    assert two.metric(two.taker, computed) == 0
    assert (
        two.metric(two.taker, "loratorio_engine_handoffs_total", side="took", outcome="done") == 3
    )
    page = two.taker.core._metrics.page_bytes
    moved = two.metric(two.taker, "loratorio_engine_handoff_bytes_total", side="took", by="tcp")
    assert moved == 3 * 10 * page


def test_a_wire_that_stops_costs_nothing_but_time(path: str) -> None:
    two = Two(path, handoff_bytes=400_000, handoff_timeout_s=0.5)
    two.submit("r", PROMPT)
    while not two.metric(two.giver, "loratorio_engine_prompt_tokens_total"):
        two.step()
    assert two.giver.wire is not None
    two.giver.wire.stop()
    two.run()
    two.close()
    (terminal,) = [out for out in two.heard["r"] if out.finish]
    assert terminal.usage is not None
    assert (terminal.usage.prompt_tokens, terminal.usage.completion_tokens) == (len(PROMPT), 12)
    assert len([out for out in two.given["r"] if out.finish]) == 1


def test_engines_of_other_pages_exchange_none(path: str) -> None:
    two = Two(path)
    assert two.giver.wire is not None
    two.giver.wire._layout = "of another kind"
    two.submit("r", PROMPT)
    two.run()
    two.close()
    assert (
        two.metric(two.taker, "loratorio_engine_handoffs_total", side="took", outcome="lost") == 1
    )
    assert [out.finish for out in two.heard["r"] if out.finish] == ["length"]


async def dialled(two: Two) -> FrameStream:
    assert two.taker.wire is not None
    return await dial(two.taker.wire.takes, None, timeout_s=5.0)


async def test_nobody_gets_in_without_the_secret(path: str) -> None:
    two = Two(path, handoff_timeout_s=0.5)
    try:
        two.submit("r", PROMPT)
        two.giver.core.inbox.take()  # it never hears of it
        two.taker.core.step()
        stranger = await dialled(two)
        challenge = await stranger.expect(Challenge)
        assert challenge.version == VERSION
        await stranger.send(Offer("t-r", b"n" * 32, b"p" * 32, "any", b"k" * 32, 0))
        with pytest.raises(HandoffFailed, match="closed"):
            await stranger.receive()
        stranger.close()
        unknown = await dialled(two)
        await unknown.expect(Challenge)
        await unknown.send(Offer("t-none", b"n" * 32, b"p" * 32, "any", b"k" * 32, 0))
        with pytest.raises(HandoffFailed, match=r"closed|nothing came"):
            await unknown.receive()
        unknown.close()
        rude = await dialled(two)
        await rude.send(Failed("x" * 1000))
        await rude.expect(Challenge)
        with pytest.raises(HandoffFailed):
            await rude.receive()
        rude.close()
        await asyncio.to_thread(two.run)
        assert [out.finish for out in two.heard["r"] if out.finish] == ["length"]
        assert two.took("expired") == 1
    finally:
        two.close()


def test_nothing_is_left_of_a_request_that_is_cancelled_on_the_way(path: str) -> None:
    two = Two(path, handoff_bytes=400_000)
    for number in range(6):
        two.submit(f"r{number}", [10 + number, *PROMPT])
        for _ in range(number):
            two.step()
        for lone in (two.taker, two.giver):
            for request in list(lone.core.book):
                lone.core.cancel(request)
        two.run()
    two.close()
    for lone in (two.giver, two.taker):
        assert lone.core.handoffs is not None
        assert not lone.core.handoffs.busy
        assert not lone.core.pool.holdings("kv")  # type: ignore[arg-type]
