"""Two real engines behind a gateway's fleet: one computes prompts, the other answers, bit for bit
what one engine alone would say, and also when the first dies half-way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.base_spec import BaseSpec
from adapters.store import AdapterStore
from engine.config import Dtype
from engine.protocol import AdapterRef, Counts, Finish, Output, Role, Sampling, Submit
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from gateway.inference.generation import Generation
from tests.adapters.builders import config, write_adapter
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.live import LiveEngine
from tests.fakes.clock import until
from tests.gateway.test_canary import MODULES, factors

pytestmark = pytest.mark.slow

PROMPT = [3 + 11 * i % 90 for i in range(300)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), Shape(), Layout("gptq", 32)).path


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AdapterRef]:
    root = tmp_path_factory.mktemp("adapters")
    store, base = AdapterStore(root / "store"), BaseSpec.from_checkpoint(model)
    settings = config(target_modules=list(MODULES), lora_alpha=8)
    digest = store.put(write_adapter(root / "adapter", settings, factors(base)))
    return root / "store", AdapterRef(digest, 4)


def engine(model: Path, store: Path, address: str, **settings: object) -> LiveEngine:
    return LiveEngine(
        model, store, address, dtype=Dtype.FLOAT32, deterministic=True, page_tokens=16,
        max_num_batched_tokens=48, **settings,
    )  # fmt: skip


@asynccontextmanager
async def fleet_of(*addresses: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(Static(addresses), gateway="test")
    running = asyncio.create_task(fleet.run())
    try:
        await until(lambda: len(fleet.ready) == len(addresses))
        yield fleet
    finally:
        running.cancel()


def wanted(name: str, adapter: AdapterRef | None, **more: object) -> Submit:
    return Submit(
        name, "tenant", PROMPT, 8, Sampling(temperature=0.9, seed=5), adapter, ignore_eos=True,
        logprobs=1, **more,  # type: ignore[arg-type]
    )  # fmt: skip


async def answer(fleet: Fleet, submit: Submit) -> list[Output]:
    generation, found = Generation(fleet.first, [submit]), list[Output]()
    async with asyncio.timeout(20):
        async for _, outputs in generation.batches():
            found += outputs
    await generation.close()
    return found


def said(outputs: list[Output]) -> list[object]:
    return [
        (out.index, out.tokens, [(one.logprob, one.top) for one in out.logprobs or ()])
        for out in sorted(outputs, key=lambda out: out.index)
        if out.tokens
    ]


async def counts(fleet: Fleet, name: str) -> list[Counts]:
    """Of each engine, the giver first."""
    clients = [member.client for member in fleet.members]
    return [(await client.counts([name]))[0] for client in clients if client is not None]


async def test_answers_are_bit_equal_and_each_prompt_is_recorded_once(
    model: Path, adapter: tuple[Path, AdapterRef], tmp_path: Path
) -> None:
    store, ref = adapter
    jobs = [wanted("base", None), wanted("tuned", ref), wanted("three", ref, n=3)]
    with engine(model, store, f"unix:{tmp_path}/alone.sock"):
        async with fleet_of(f"unix:{tmp_path}/alone.sock") as fleet:
            alone = [said(await answer(fleet, job)) for job in jobs]
    giver = engine(model, store, f"unix:{tmp_path}/giver.sock", role=Role.PREFILL)
    taker = engine(
        model, store, f"unix:{tmp_path}/taker.sock", role=Role.DECODE,
        handoff_listen="tcp:127.0.0.1:0",
    )  # fmt: skip
    with giver, taker:
        async with fleet_of(f"unix:{tmp_path}/giver.sock", f"unix:{tmp_path}/taker.sock") as fleet:
            together = await asyncio.gather(*(answer(fleet, job) for job in jobs))
            assert [said(outputs) for outputs in together] == alone
            for job in jobs:
                at_giver, at_taker = await counts(fleet, job.request)
                assert not at_giver.prompt_tokens
                assert at_taker.prompt_tokens == len(PROMPT)
                assert at_taker.completion_tokens == 8 * job.n
            assert {out.finish for outputs in together for out in outputs if out.finish} == {
                Finish.LENGTH
            }


async def test_a_giver_that_dies_half_way_is_not_noticed(
    model: Path, adapter: tuple[Path, AdapterRef], tmp_path: Path
) -> None:
    store, ref = adapter
    taker = engine(
        model, store, f"unix:{tmp_path}/taker.sock", role=Role.DECODE,
        handoff_listen="tcp:127.0.0.1:0", handoff_timeout_s=2.0,
    )  # fmt: skip
    giver = engine(
        model, store, f"unix:{tmp_path}/giver.sock", role=Role.PREFILL, handoff_timeout_s=0.5
    )
    with taker, giver:
        async with fleet_of(f"unix:{tmp_path}/giver.sock", f"unix:{tmp_path}/taker.sock") as fleet:
            asking = asyncio.create_task(answer(fleet, wanted("r", ref)))
            await until(lambda: bool(giver.core.book))
            assert giver.wire is not None
            giver.wire.stop()
            outputs = await asking
            (terminal,) = [out for out in outputs if out.finish]
            assert terminal.finish is Finish.LENGTH
            assert terminal.usage is not None
            assert terminal.usage.prompt_tokens == len(PROMPT)
            alone = said(await answer(fleet, wanted("again", ref)))
            assert said(outputs) == alone
