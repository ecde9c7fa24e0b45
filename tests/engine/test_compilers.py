"""Kernels are compiled by another process, into the cache where this one finds them."""

import json

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver

from engine.compilers import Compilers, NotCompiled
from engine.compiling import Ahead
from kernels.mask_tokens import _mask_tokens_kernel

HOPPER = ("cuda", 90, 32)
TYPES = {"logits_ptr": "*fp32", "rows_ptr": "*i32", "bits_ptr": "*i32"} | dict.fromkeys(
    ("V", "W", "stride_b"), "i32"
)
CONSTANTS = {"BLOCK": 128, "CHAINED": True}


def facts(**options):
    """As Triton describes ``_mask_tokens_kernel``."""
    return json.dumps(
        {
            "signature": TYPES | dict.fromkeys(CONSTANTS, "constexpr"),
            "constant_keys": [[len(TYPES) + i] for i in range(len(CONSTANTS))],
            "constant_vals": list(CONSTANTS.values()),
            "attrs_keys": [[i] for i in range(3)],
            "attrs_vals": [[["tt.divisibility", 16]]] * 3,
            "options": options,
        }
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return lambda: sorted(path.name for path in tmp_path.glob("*/*.cubin"))


@pytest.mark.slow
def test_kernels_come_into_the_cache_and_failures_are_told(cache):
    compilers = Compilers(lanes=2)
    try:
        name = "_mask_tokens_kernel"
        fine = compilers.compile("kernels.mask_tokens", name, facts(num_warps=4), HOPPER)
        missing = compilers.compile("kernels.mask_tokens", "_none", facts(), HOPPER)
        strange = compilers.compile("kernels.mask_tokens", name, facts(num_warps=3), HOPPER)
        fine.result(timeout=300)
        with pytest.raises(NotCompiled, match="_none"):
            missing.result(timeout=300)
        with pytest.raises(NotCompiled, match="num_warps"):
            strange.result(timeout=300)
        met_ahead(compilers, cache)
    finally:
        compilers.close()
    with pytest.raises(NotCompiled, match="has ended"):
        compilers.compile("kernels.mask_tokens", name, facts(), HOPPER).result(timeout=300)


def met_ahead(compilers, cache):
    """A launch in ``Ahead`` is compiled elsewhere, once, and found here in the cache."""
    before, hits, loaded = cache(), [], []
    launch = (
        torch.zeros(4, 128),
        torch.zeros(4, dtype=torch.int32),
        torch.zeros((4, 4), dtype=torch.int32),
    )
    options = {"BLOCK": 64, "CHAINED": True, "num_warps": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_active", Hopper())
        patch.setattr(torch.cuda, "set_device", lambda _: None)
        patch.setattr(CompiledKernel, "run", property(lambda kernel: loaded.append(kernel.name)))
        patch.setattr(
            knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit)
        )
        with Ahead(torch.device("cuda"), compilers) as ahead:
            for _ in range(2):
                _mask_tokens_kernel[(1,)](*launch, 128, 4, 128, **options)
    assert (ahead.kernels, hits, loaded) == (1, [True], ["_mask_tokens_kernel"])
    assert len(cache()) == len(before) + 1


class Hopper:
    """As much of Triton's driver as compiling asks for."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget(*HOPPER)


def test_a_process_that_ends_fails_what_it_was_asked(monkeypatch):
    monkeypatch.setattr("engine.compilers.sys.executable", "/bin/true")
    compilers = Compilers(lanes=1)
    with pytest.raises(NotCompiled, match="has ended"):
        compilers.compile("kernels.mask_tokens", "none", "{}", HOPPER).result(timeout=60)
    compilers.close()
