"""What a start compiles, counted on an H200 that is not there."""

import pytest

from engine.config import AdapterDtype, EngineConfig
from engine.timeline import Timeline
from kernels.launch import interpreting
from tests.engine import imagined

pytestmark = pytest.mark.skipif(interpreting(), reason="interpreted kernels are not compiled")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AdapterDtype.AUTO, AdapterDtype.FP8])
def test_a_start_of_an_8b_compiles_few_kernels(kind, monkeypatch):
    """Of adapters in 8 bits as many as of others, and none beside them."""
    launches, timeline = imagined.install(monkeypatch), Timeline()
    rehearsal = imagined.rehearsal_of("llama-3.1-8b", EngineConfig(model="", adapter_dtype=kind))
    rehearsal.play(imagined.DEVICE, None, timeline)
    compiled = launches.kernels
    assert sum(compiled.values()) <= 82
    assert compiled["_shrink_kernel"] <= 5
    assert compiled["_expand_kernel"] <= 17
    assert [phase for phase, _ in timeline.phases] == [
        "0 kernels", "rehearsed passes", "measured memory",
    ]  # fmt: skip
