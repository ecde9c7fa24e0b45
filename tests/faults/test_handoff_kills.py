"""An engine that computes prompts is killed while it does: every answer is whole, and the same.

``KILLS`` says how often; without it, only ``make test-soak`` runs this.
"""

import asyncio
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from engine.bench.pair import EnginePair
from engine.client import EngineClient
from engine.handing import Handing
from engine.protocol import Finish, Sampling, Submit
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("KILLS" not in os.environ, reason="only make test-soak kills engines"),
]
KILLS = max(1, int(os.environ.get("KILLS", "1")) // 20)
FLAGS = [
    "--device", "cpu", "--dtype", "float32", "--deterministic", "--threads", "1",
    "--block-size", "16", "--max-num-batched-tokens", "64", "--max-num-seqs", "8",
    "--pool-bytes", str(16 << 20), "--handoff-timeout", "5",
]  # fmt: skip


def wanted(number: int) -> Submit:
    dice = random.Random(number)
    tokens = [dice.randrange(3, 90) for _ in range(900)]
    return Submit(f"r{number}", "t", tokens, 8, Sampling(seed=number), ignore_eos=True)


async def answered(clients: list[EngineClient], submit: Submit, *, hand: bool) -> list[int]:
    giver, taker = clients
    async with AsyncExitStack() as stack:
        handing = Handing(giver, taker, submit)
        told = handing.submit if hand else submit
        stream = await stack.enter_async_context(taker.generate(told))
        if hand:
            await stack.enter_async_context(handing)
        async with asyncio.timeout(60):
            outputs = [output async for output in stream]
    (last,) = [output for output in outputs if output.finish]
    assert last.finish is Finish.LENGTH
    assert last.usage is not None
    assert last.usage.prompt_tokens == len(submit.tokens)
    return [token for output in outputs for token in output.tokens]


async def test_no_answer_is_lost_with_the_engine_that_computes_its_prompt(tmp_path: Path) -> None:
    shape = Shape(hidden=128, inner=160, heads=4, kv_heads=2, head_dim=32, layers=2, vocab=256,
                  positions=1024)  # fmt: skip
    model = write_checkpoint(tmp_path, shape, Layout("gptq", 32)).path
    dice, expected = random.Random(int(os.environ.get("SEED", "0"))), {}
    for _ in range(KILLS):
        async with EnginePair(model, FLAGS, gpus=False) as pair:
            if not expected:
                for number in range(6):
                    alone = await answered(pair.clients, wanted(number), hand=False)
                    expected[number] = alone
            jobs = [of_tenant(wanted(number), f"t{dice.random()}") for number in range(6)]
            asking = [asyncio.create_task(answered(pair.clients, job, hand=True)) for job in jobs]
            await asyncio.sleep(dice.uniform(0.0, 0.5))
            pair.kill(0)
            found = await asyncio.gather(*asking)
            assert dict(enumerate(found)) == expected


def of_tenant(submit: Submit, tenant: str) -> Submit:
    """Of a tenant for whom nothing was computed yet."""
    return Submit(
        submit.request, tenant, submit.tokens, submit.max_tokens, submit.sampling, ignore_eos=True
    )
