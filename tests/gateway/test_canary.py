"""The canary on a real engine: what is right passes, what is not is refused with the numbers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from adapters.base_spec import BaseSpec
from adapters.keys import PARENTS
from adapters.store import AdapterStore
from engine.config import Dtype
from engine.protocol import AdapterRef, AskReference, Verdict
from gateway.adapter_api.canary import Canary, Tried
from gateway.adapter_api.divergence import LIMITS, divergence
from gateway.adapter_api.probe import MOST_TOKENS, probe_tokens
from gateway.errors import AdapterRefused, InvalidRequest, NoEngine, Unavailable
from gateway.fleet.directory import Static
from gateway.fleet.fleet import Fleet
from tests.adapters.builders import PREFIX, Tensors, config, encode, write_adapter
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.live import LiveEngine, Reference
from tests.fakes.clock import until
from tests.fakes.engine import FakeEngine

MODULES = ("q_proj", "v_proj", "down_proj")
PROBE = [3 + 11 * i % 90 for i in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), Shape(), Layout("gptq", 32)).path


def factors(base: BaseSpec, *, b: float = 0.3, a: float = 0.1) -> Tensors:
    """Of every layer, ``a`` and ``b`` the size of their values."""
    random, found = np.random.default_rng(5), {}
    for layer in range(base.num_layers):
        for module in MODULES:
            inputs, outputs = base.shape_of(module)
            name = f"{PREFIX}model.layers.{layer}.{PARENTS[module]}.{module}"
            found[f"{name}.lora_A.weight"] = encode(a * random.standard_normal((4, inputs)))
            found[f"{name}.lora_B.weight"] = encode(b * random.standard_normal((outputs, 4)))
    return found


@asynccontextmanager
async def trying(
    model: Path,
    root: Path,
    *,
    dtype: Dtype = Dtype.FLOAT32,
    reference: Callable[[Reference], Reference] = lambda found: found,
) -> AsyncIterator[Callable[..., asyncio.Future[Tried]]]:
    """Tries an adapter of these sizes on a live engine."""
    base, store = BaseSpec.from_checkpoint(model), AdapterStore(root / "store")
    address = f"unix:{root / 'e.sock'}"
    fleet = Fleet(Static((address,)), gateway="test")
    canary = Canary(fleet, PROBE)

    async def attempt(*, alpha: float = 8, **sizes: float) -> Tried:
        settings = config(target_modules=list(MODULES), lora_alpha=alpha)
        digest = store.put(write_adapter(root / "adapter", settings, factors(base, **sizes)))
        return await canary.run(AdapterRef(digest, 4), "")

    engine = LiveEngine(model, root / "store", address, dtype=dtype, reference=reference)
    with engine:
        connecting = asyncio.create_task(fleet.run())
        try:
            await until(lambda: fleet.ready)
            yield attempt  # type: ignore[misc]
        finally:
            connecting.cancel()


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
async def test_a_good_adapter_passes_and_shows_its_numbers(model, tmp_path, dtype):
    async with trying(model, tmp_path, dtype=dtype) as attempt:
        tried = await attempt()
    assert tried.warnings == ()
    assert tried.limit == LIMITS[dtype]
    assert tried.positions == len(PROBE) - 1
    assert tried.mean_kl is not None
    assert tried.effect_kl is not None
    assert tried.mean_kl < tried.limit / 3 < tried.effect_kl / 30
    assert tried.worst_kl is not None
    assert tried.worst_kl >= tried.mean_kl
    assert tried.pages
    facts = tried.facts()
    assert (facts["dtype"], facts["finite"]) == (dtype, True)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
async def test_another_scale_on_one_side_is_refused_with_both_distances(model, tmp_path, dtype):
    def halved(own: Reference) -> Reference:
        """What the definition says of an adapter of half the scale: it is in the store as well."""

        def answer(ask: AskReference) -> Verdict:
            return own(msgspec.structs.replace(ask, adapter=AdapterRef(digest, 4)))

        return answer

    base = BaseSpec.from_checkpoint(model)
    weaker = write_adapter(
        tmp_path / "weaker", config(target_modules=list(MODULES), lora_alpha=4), factors(base)
    )
    digest = AdapterStore(tmp_path / "store").put(weaker)
    async with trying(model, tmp_path, dtype=dtype, reference=halved) as attempt:
        with pytest.raises(AdapterRefused, match=r"mean KL divergence .* over .*moves the base by"):
            await attempt()


async def test_an_adapter_that_never_reached_the_engines_answer_is_refused(model, tmp_path):
    def without(own: Reference) -> Reference:
        def answer(ask: AskReference) -> Verdict:
            found = own(ask)
            return msgspec.structs.replace(found, logprobs=found.base, base=found.logprobs)

        return answer

    async with trying(model, tmp_path, dtype=Dtype.BFLOAT16, reference=without) as attempt:
        with pytest.raises(AdapterRefused, match="mean KL divergence"):
            await attempt()


async def test_values_that_overflow_on_the_way_are_refused(model, tmp_path):
    async with trying(model, tmp_path) as attempt:
        with pytest.raises(AdapterRefused, match="not finite"):
            await attempt(a=1e30, b=1e30)
        assert (await attempt()).mean_kl is not None  # the engine goes on


async def test_what_changes_nothing_is_a_warning(model, tmp_path):
    async with trying(model, tmp_path, dtype=Dtype.BFLOAT16) as attempt:
        zero = await attempt(b=0.0)
        assert zero.effect_kl == pytest.approx(0.0, abs=1e-9)
        assert zero.warnings == ("canary: on the probe this adapter answers as the base does",)
        little = await attempt(b=0.003)
        assert little.effect_kl is not None
        assert 1e-6 < little.effect_kl < 1e-2
        assert "could not be told whether it is applied in full" in little.warnings[0]


async def test_an_engine_that_is_away_or_full_refuses_no_adapter(tmp_path):
    fleet = Fleet(Static(()), gateway="test")
    with pytest.raises(NoEngine):
        await Canary(fleet, PROBE).run(AdapterRef("d" * 64, 4), "")
    address = f"unix:{tmp_path / 'e.sock'}"
    fleet = Fleet(Static((address,)), gateway="test")
    async with FakeEngine(address, credits=0):
        connecting = asyncio.create_task(fleet.run())
        await until(lambda: fleet.ready)
        with pytest.raises(Unavailable, match="queue_full"):
            await Canary(fleet, PROBE).run(AdapterRef("d" * 64, 4), "")
        connecting.cancel()


async def test_a_canary_that_is_off_says_so():
    tried = await Canary(Fleet(Static(()), gateway="test"), PROBE, enabled=False).run(
        AdapterRef("d" * 64, 4), ""
    )
    assert tried.facts()["mean_kl"] is None
    assert "without" in tried.warnings[0]


def test_divergence_is_zero_for_equal_and_positive_for_other_distributions():
    assert divergence([-0.5, -2.0], [-0.5, -2.0]) == 0.0
    assert divergence([-0.5, -2.0], [-2.0, -0.5]) > 0.1


class Words:
    """A tokenizer of one token per word; chats only with a template."""

    def __init__(self, template: bool) -> None:
        self.template, self.tokenizer = template, self

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        return [1] * add_special + [len(word) for word in text.split()]

    async def of_chat(self, messages: object) -> list[int]:
        if not self.template:
            raise InvalidRequest("no template")
        return [99, 98]


async def test_the_probe_is_a_chat_where_the_model_knows_chats():
    chat, text = await probe_tokens(Words(True)), await probe_tokens(Words(False))
    assert chat[:2] == (99, 98)
    assert text[0] == 1
    assert 1 not in chat
    assert 20 <= len(chat) < len(text) <= MOST_TOKENS
