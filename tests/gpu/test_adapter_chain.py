"""The product and the two kernels of adapters around it, one after another in a graph."""

import pytest
import torch

from engine.layers.linear import W4
from engine.layers.lora import Adapted, Addends, LoraPass
from engine.layers.signals import Signals
from kernels import launch
from kernels.rms_norm import rms_norm
from kernels.segments import BASE, Segments
from kernels.silu_mul import silu_mul
from kernels.w4_weight import pack_w4
from tests.kernels.pools import generator, with_adapters

pytestmark = pytest.mark.gpu

HIDDEN, INNER, RANK, LAYERS, GROUP = 4096, 14336, 16, 3, 128
REPLAYS = 400


class Mlps:
    """Layers of an 8B without attention: norm, gate_up, silu, down, with adapters' rows."""

    def __init__(self, adapters: int) -> None:
        wide, narrow = (INNER, INNER), (HIDDEN,)
        self._layers = [
            (
                Site(HIDDEN, wide, adapters, layer=n, name="gate_up"),
                Site(INNER, narrow, adapters, layer=n, name="down"),
            )
            for n in range(LAYERS)
        ]
        self._signals = Signals(LAYERS, torch.device("cuda"))
        self._norm = torch.ones(HIDDEN, dtype=torch.float16, device="cuda")

    def __call__(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        residual = x.clone()
        self._signals.begin()
        x = rms_norm(residual.unsqueeze(0), self._norm, 1e-5)
        for gate_up, down in self._layers:
            up = gate_up(x, segments, self._signals)
            x = silu_mul(up.planes, addend=up.addend, dtype=x.dtype, chain=up.chain)
            sums = down(x, segments, self._signals)
            x = rms_norm(
                sums.planes,
                self._norm,
                1e-5,
                addend=sums.addend,
                residual=residual,
                chain=sums.chain,
            )
        return x


class Site:
    def __init__(
        self, width: int, slices: tuple[int, ...], adapters: int, *, layer: int, name: str
    ) -> None:
        random, self._name = generator(width + layer), name
        columns = sum(slices)
        codes = torch.randint(0, 16, (width, columns), generator=random).cuda()
        sizes = torch.rand(width // GROUP, columns, generator=random) * 0.01
        packed = pack_w4(codes, sizes.to("cuda", torch.float16), None, group=GROUP)
        self._adapted = Adapted(W4([packed], (width, columns), dtype=torch.float16), layer, name)
        self._adapters = with_adapters(
            [(RANK,) * len(slices)] * adapters,
            width=width,
            slices=slices,
            dtype=torch.float16,
            device="cuda",
            scale=0.02,
        )

    def __call__(self, x: torch.Tensor, segments: Segments, signals: Signals) -> Addends:
        sites = [{self._name: self._adapters.site}] * LAYERS
        pool = self._adapters.pool
        lora = LoraPass(pool=pool, sites=sites, segments=segments, signals=signals)
        return self._adapted(x, lora)


@pytest.mark.parametrize(
    "adapters",
    [
        [0],
        [0] * 2 + [1] * 3 + [BASE] * 2 + [3],
        [row // 2 for row in range(32)],
        [*range(64)],
        [row // 2 for row in range(128)],
    ],
    ids=["1x1", "8x3", "32x16", "64x64", "128x64"],
)
def test_replays_have_the_bits_of_kernels_that_wait_for_each_other(
    adapters: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of the graph is used over and over by its layers: who reads too early reads them."""
    layers = Mlps(max(adapters) + 1)
    segments = Segments.of_rows(adapters, "cuda")
    inputs = [torch.randn(len(adapters), HIDDEN, generator=generator(n)) for n in range(5)]
    inputs = [x.to("cuda", torch.float16) for x in inputs]
    with monkeypatch.context() as serial:
        serial.setattr(launch, "_capability", lambda device: (8, 0))
        expected = [layers(x, segments) for x in inputs]
    x = inputs[0].clone()
    layers(x, segments)  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layers(x, segments)
    wrong = torch.zeros(REPLAYS, dtype=torch.bool, device="cuda")
    for turn in range(REPLAYS):  # the device never waits for this loop
        number = turn % len(inputs)
        x.copy_(inputs[number])
        y.fill_(float("nan"))
        graph.replay()
        wrong[turn] = (y != expected[number]).any()
    assert not wrong.any(), f"{int(wrong.sum())} of {REPLAYS} replays"
