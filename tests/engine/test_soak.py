"""The real engine, deterministic, while adapters come and go: every answer has the bits of a run
alone, whether its prefix was found, its pages were taken away or its adapter was loaded anew."""

import random

import msgspec
import pytest

from engine.bench.alone import LoneEngine, Requests, adapter_ref
from engine.config import Device, Dtype, EngineConfig
from engine.speculation.settings import Method, SpeculationSettings
from tests.engine.checkpoints import Layout, Shape, write_checkpoint

pytestmark = pytest.mark.slow

SHAPE = Shape(hidden=128, inner=160, heads=4, kv_heads=2, head_dim=32, layers=2, vocab=256)
ACTIVATED, INVOCATION = (3, 4, 5), (250,)  # aLoRAs, and what invokes them
Job = tuple[list[int], int, int | None]  # prompt, tokens to generate, adapter's number


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("soak"), SHAPE, Layout("gptq", 32)).path)


def engine(path: str, *, pages: int, caching: bool, batched: int, drafts: int = 0) -> LoneEngine:
    ngram = SpeculationSettings(method=Method.NGRAM, tokens=drafts, lookup_min=1, lookup_max=3)
    made = EngineConfig(
        model=path, device=Device.CPU, dtype=Dtype.FLOAT32, deterministic=True, page_tokens=16,
        pool_bytes=pages * 16384 * 2, max_model_len=128, max_num_seqs=6,
        max_num_batched_tokens=batched, enable_prefix_caching=caching, threads=1,
        speculation=ngram if drafts else None,
    )  # fmt: skip
    return LoneEngine(made)


def jobs() -> list[Job]:
    draw = random.Random(5)
    shared = [draw.randrange(10, 200) for _ in range(48)]
    made: list[Job] = []
    for _ in range(40):
        own = [draw.randrange(10, 200) for _ in range(draw.randint(1, 30))]
        prompt = shared[: draw.choice([0, 20, 48])] + own
        adapter = draw.choice([None, 0, 1, 2, 3, 4, 5])
        if adapter in ACTIVATED:
            prompt.insert(draw.randrange(len(prompt) + 1), INVOCATION[0])
        made.append((prompt, draw.randint(1, 20), adapter))
    return made


def run(lone: LoneEngine, wanted: list[Job], *, together: bool) -> dict[str, list[int]]:
    said = Requests()
    for number, (prompt, count, adapter) in enumerate(wanted):
        ref = None if adapter is None else adapter_ref(adapter, 8)
        if ref and adapter in ACTIVATED:
            ref = msgspec.structs.replace(ref, invocation=INVOCATION)
        lone.submit(f"r{number}", prompt, count, ref)
        if not together:
            list(lone.passes(said))
    for _ in lone.passes(said):
        lone.core.seating.check()
    assert len(said.finished) == len(wanted)
    return said.outputs


def test_outputs_have_the_bits_of_serial_runs_while_adapters_come_and_go(path: str) -> None:
    wanted = jobs()
    serial = run(engine(path, pages=200, caching=False, batched=256), wanted, together=False)
    lone = engine(path, pages=24, caching=True, batched=24)
    drafting = engine(path, pages=24, caching=True, batched=24, drafts=3)
    for each in (lone, drafting):
        assert run(each, wanted, together=True) == serial
        core = each.core
        assert core.residency.evictions > 0
        assert sum(r > 0 for r in (core.scheduler.preemptions, core.seating.prefix.evicted)) > 0
    kept = 'loratorio_engine_tenant_draft_tokens_total{kind="kept",tenant="bench"}'
    lines = dict(line.rsplit(" ", 1) for line in drafting.core._metrics.text().splitlines())
    assert float(lines[kept]) > 0


def test_who_yields_and_comes_back_from_host_memory_has_the_bits_of_a_serial_run(
    path: str,
) -> None:
    draw = random.Random(7)
    wanted: list[Job] = [
        ([draw.randrange(10, 200) for _ in range(10)], 60, number % 2 or None)
        for number in range(6)
    ]  # at their ends they take 20 pages, and the adapter some
    serial = run(engine(path, pages=200, caching=False, batched=256), wanted, together=False)
    lone = engine(path, pages=18, caching=True, batched=64)
    swap = lone.core.seating.swap
    moved = []
    bring = swap.bring

    def counted(*given: object) -> int:
        tokens = bring(*given)  # type: ignore[arg-type]
        moved.append(tokens)
        return tokens

    swap.bring = counted  # type: ignore[method-assign]
    swap._memory.page_s = 0.0  # type: ignore[union-attr, misc]  # so that it always pays
    assert run(lone, wanted, together=True) == serial
    assert moved
    assert min(moved) > 10
