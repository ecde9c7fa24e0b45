"""With keys and values in 8 bits the engine computes what the definition says when it rounds them
so too, alike for every neighbour and every cut, over pages of half the size."""

from pathlib import Path

import pytest
import torch

from engine.bench.floor import H200
from engine.bench.reference import Reference
from engine.bench.shapes import LLAMA_8B
from engine.checkpoint import Checkpoint
from engine.composition import build_runner
from engine.config import EngineConfig, KvCacheDtype
from engine.memory import PoolSize
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.plan import Wish, plan
from engine.sampling import NOT_FINITE
from engine.stored_weights import of_shape
from tests.engine.checkpoints import Shape, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig, chunk, draw

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("m"), Shape()).path


def tokens(count: int, seed: int = 0) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(3, 96, (count,), generator=draw).tolist()


def rigged(path: Path, **facts) -> Rig:
    rig = Rig(path, narrow=True, **facts)
    rig.load(0, random_adapter(rig.spec, 4, seed=0, dtype=rig.memory.pool.dtype))
    return rig


def test_logits_are_those_of_the_definition_with_rounded_keys_and_values(path):
    rig = rigged(path)
    prompts, adapter = [tokens(50), tokens(17, seed=1)], random_adapter(rig.spec, 4, seed=0)
    reference = Reference(Checkpoint(path), CPU, narrow=True).logits(prompts, [adapter, None])
    pages = [rig.pages(60) for _ in prompts]
    rig.launch([chunk(prompts[0][:49], pages[0], adapter=0)])
    found = rig.logits(
        [chunk(prompts[0][49:], pages[0], start=49, adapter=0), chunk(prompts[1], pages[1])]
    )
    expected = torch.cat([reference[0][49:], reference[1]])
    assert float((found - expected).norm() / expected.norm()) < 1e-3  # a tie may round otherwise


def test_logits_are_near_those_of_wide_keys_and_values(path):
    prompt, narrow, wide = tokens(80), rigged(path), Rig(path)
    found = narrow.logits([chunk(prompt, narrow.pages(80))])
    expected = wide.logits([chunk(prompt, wide.pages(80))])
    off = float((found - expected).norm() / expected.norm())
    assert 1e-4 < off < 0.05  # rounded, and not much


def test_in_deterministic_mode_no_cut_and_no_neighbour_changes_a_bit(path):
    rig, prompt = rigged(path, deterministic=True), tokens(40)
    whole = rig.logits([chunk(prompt, rig.pages(40), adapter=0)])
    pages, parts = rig.pages(40), []
    for start, end in ((0, 17), (17, 18), (18, 40)):
        part = chunk(prompt[start:end], pages, start=start, adapter=0)
        other = chunk(tokens(9, seed=start), rig.pages(9))
        parts.append(rig.logits([part, other])[: end - start])
    assert torch.equal(torch.cat(parts), whole)


def test_a_copied_page_has_its_magnitudes(path):
    rig, prompt = rigged(path), tokens(20)
    pages = rig.pages(20)
    rig.launch([chunk(prompt[:19], pages)])
    copies = rig.pages(20)
    rig.memory.copy(list(zip(pages, copies, strict=True)))
    rig.memory.pool[pages] = torch.nan
    expected = Reference(Checkpoint(path), CPU, narrow=True).logits([prompt], [None])[0][-1:]
    found = rig.logits([chunk(prompt[19:], copies, start=19)])
    assert float((found - expected).norm() / expected.norm()) < 1e-3


def test_what_is_not_finite_fails_its_own_row_alone(path):
    rig, prompt = rigged(path), tokens(10)
    broken = random_adapter(rig.spec, 4, seed=7)
    broken.factors[0, "v_proj"].b.fill_(float("inf"))
    rig.load(1, broken)
    own, other = rig.pages(10), rig.pages(10)
    for start, end in ((0, 9), (9, 10)):  # written in one pass, read in another
        part = prompt[start:end]
        base, failed = rig.launch(
            [
                chunk(part, own, start=start, draw=draw()),
                chunk(part, other, start=start, adapter=1, draw=draw()),
            ]
        )
    assert base.token is not None
    assert (failed.token, failed.failed) == (None, NOT_FINITE)


def test_magnitudes_lie_behind_all_layers_keys_and_nowhere_else(path):
    spec = ModelSpec.read(Checkpoint(path).config)
    memory = PageMemory(spec, 16, num_pages=3, dtype=torch.float32, device=CPU, narrow=True)
    for number, pages in enumerate(memory.layers):
        assert pages.magnitudes is not None
        pages.kv.view(torch.uint8).fill_(number + 1)
        pages.magnitudes.fill_(number + 0.5)
    for number, pages in enumerate(memory.layers):
        assert bool((pages.kv.view(torch.uint8) == number + 1).all())
        assert pages.magnitudes is not None
        assert bool((pages.magnitudes == number + 0.5).all())


def test_pages_of_a_real_model_take_half_the_bytes_and_a_32nd():
    spec, weights = of_shape(LLAMA_8B, "awq")
    wide, narrow = (
        PoolSize(EngineConfig(model="", kv_cache_dtype=kind), spec, torch.bfloat16).page_bytes
        for kind in (KvCacheDtype.AUTO, KvCacheDtype.FP8)
    )
    assert narrow == wide // 2 + wide // 64
    wish = Wish(gpu="h200", context=4096, adapters=0, rank=16, kv_cache_dtype=KvCacheDtype.FP8)
    assert plan(spec, weights, wish, H200).page_bytes == narrow


def test_an_engine_is_built_with_them(path):
    def built(kind: KvCacheDtype) -> int:
        config = EngineConfig(
            model=str(path), device="cpu", dtype="float32", pool_bytes=64 << 20, page_tokens=512,
            kv_cache_dtype=kind,
        )  # fmt: skip
        return build_runner(config).num_pages

    assert built(KvCacheDtype.FP8_E4M3) > 1.9 * built(KvCacheDtype.AUTO)
