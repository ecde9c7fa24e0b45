"""One compiled kernel serves every site, rank and table of adapters: a start compiles few."""

from dataclasses import replace

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from kernels import lora_expand as expand_module
from kernels import lora_shrink as shrink_module
from kernels.launch import interpreting
from kernels.lora_table import empty_site
from kernels.segments import Segments

pytestmark = pytest.mark.skipif(interpreting(), reason="interpreted kernels are not compiled")

SITES = ((4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (14336, 14336)), (14336, (4096,)))
ROWS = 1024  # of a pass with prompts: its terms are one plane, whatever the width


@pytest.fixture
def variants(monkeypatch):
    """Of each kernel that was launched, what the compiler would tell apart."""
    backend, found = make_backend(GPUTarget("cuda", 90, 32)), set()

    def run(kernel, *args, grid, warmup, **options):
        binder = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, seen, said = binder(*args, debug=False, instrumentation_mode="", **options)
        found.add((kernel.fn.__name__, str(seen), str(said)))

    monkeypatch.setattr(JITFunction, "run", run)
    for module in (shrink_module, expand_module):
        monkeypatch.setattr(module, "use_triton", lambda _: True)
    return found


def test_neither_sites_nor_ranks_nor_the_size_of_the_table_take_kernels_of_their_own(variants):
    segments = Segments.of_rows([0] * ROWS, "cpu", tile=64)
    pool = torch.zeros(64, dtype=torch.bfloat16)
    for width, slices in SITES:
        for rank, adapters in ((16, 1), (64, 3)):
            site = empty_site(width, slices, adapters=adapters + 1, rank=rank, device="cpu")
            later = replace(site, a_units=site.a_units[1:], ranks=site.ranks[1:])  # any address
            x = torch.zeros((ROWS, width), dtype=pool.dtype)
            h = shrink_module.lora_shrink(x, pool, later, segments, deterministic=False)
            y = torch.zeros((ROWS, sum(slices)), dtype=pool.dtype)
            expand_module.lora_expand(h, pool, later, segments, y, deterministic=False)
    assert sorted(name for name, _, _ in variants) == ["_expand_kernel", "_shrink_kernel"]
