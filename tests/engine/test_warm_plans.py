"""The passes an engine rehearses are ones it can be asked for, of every order of length."""

import pytest

from engine.config import EngineConfig
from engine.warm_plans import ADAPTERS, WarmPlans
from tests.engine.checkpoints import Layout, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig


def plans(longest=4096, **settings):
    config = EngineConfig(model="", **settings)
    return config, list(WarmPlans(config, longest).all())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 1, "max_num_batched_tokens": 2},
        {"max_num_seqs": 7, "max_num_batched_tokens": 100, "page_tokens": 16},
        {"max_num_batched_tokens": 8192},
    ],
)
def test_no_budget_is_passed(settings):
    config, found = plans(**settings)
    for plan in found:
        assert 0 < plan.tokens <= config.max_num_batched_tokens
        assert len(plan.chunks) <= config.max_num_seqs or len(plan.chunks) == 2
        for chunk in plan.chunks:
            assert len(chunk.tokens) <= len(chunk.pages) * config.page_tokens
    assert max(plan.tokens for plan in found) == config.max_num_batched_tokens


def test_row_counts_of_every_order_come_as_multiples_of_16_and_not():
    _, found = plans(max_num_batched_tokens=8192)
    counts = {plan.tokens for plan in found}
    for size in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        inside = [n for n in counts if size < n <= 2 * size]
        assert any(n % 16 == 0 for n in inside)
        assert any(n % 16 for n in inside)
    assert {1, 2} <= counts


def test_a_runner_computes_each_of_them(tmp_path):
    rig = Rig(write_checkpoint(tmp_path, layout=Layout("gptq", 32)).path)
    for row in ADAPTERS:
        rig.load(row, random_adapter(rig.spec, 4, seed=row))
    config = EngineConfig(model="", max_num_seqs=5, max_num_batched_tokens=36, page_tokens=16)
    for plan in WarmPlans(config, rig.spec.max_position).all():
        assert all(drawn.token is not None for drawn in rig.launch(plan.chunks))
