"""An H200 that is not there: tensors without memory, kernels that are noted and not launched.

What an engine does on the host to launch its passes runs as it is.
"""

import importlib
import pkgutil
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

import kernels
from engine import graphs, mixed_graphs, rehearsal, runner, staging
from engine.adapter_table import AdapterTable
from engine.batch import BatchBuilder
from engine.bench.shapes import SHAPES
from engine.loading import Placement, Weights
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.page_size import pages_of_tokens
from engine.quant.formats import Quantised
from engine.rehearsal import SHALLOW, Rehearsal, Stage
from kernels import w4_hopper
from kernels.lora_codes import LoraCodes
from kernels.segments import SEGMENT_TILES

DEVICE = torch.device("meta")
GROUP = 128


class Launches:
    """Counts launches by what the compiler tells apart."""

    def __init__(self):
        self.found = Counter()
        self._backend, self._binders = make_backend(GPUTarget("cuda", 90, 32)), {}

    def note(self, kernel, *args, grid, warmup=False, **options):
        if kernel not in self._binders:
            self._binders[kernel] = create_function_from_signature(
                kernel.signature, kernel.params, self._backend
            )
        _, seen, said = self._binders[kernel](
            *args, debug=False, instrumentation_mode="", **options
        )
        self.found[kernel.fn.__name__, str(seen), str(said)] += 1

    @property
    def kernels(self):
        """How many the compiler makes of each."""
        return Counter(name for name, _, _ in self.found)


def install(patch) -> Launches:
    """With pytest's monkeypatch."""
    launches, to, send = Launches(), torch.Tensor.to, staging.send
    patch.setattr(JITFunction, "run", lambda kernel, *a, **o: launches.note(kernel, *a, **o))
    patch.setattr(torch.Tensor, "is_cuda", property(lambda self: self.device == DEVICE))
    patch.setattr(torch.Tensor, "__bool__", lambda self: False)
    patch.setattr(
        torch.Tensor, "to", lambda self, *a, **o: self if a == ("cpu",) else to(self, *a, **o)
    )
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    device = {
        "use_triton": lambda tensor: True,
        "chained": lambda tensor, *, chain=True: {"CHAINED": chain, "launch_pdl": chain},
        "device_name": lambda device: "nvidia h200",
        "multiprocessors": lambda device: 132,
    }
    for module in pkgutil.iter_modules(kernels.__path__):
        found = importlib.import_module(f"kernels.{module.name}")
        for name in device.keys() & vars(found).keys():
            patch.setattr(found, name, device[name])
    patch.setattr(w4_hopper, "takes", lambda *_: True)
    for name, module in list(sys.modules.items()):
        if name.startswith("engine.") and getattr(module, "send", None) is send:
            patch.setattr(module, "send", _sent)
    for module in (graphs, mixed_graphs):
        patch.setattr(module, "PinnedStages", lambda shape: None)
    patch.setattr(runner.ModelRunner, "_mark", lambda self: None)
    patch.setattr(runner.PassPending, "wait", lambda self: None)
    patch.setattr(rehearsal, "Ahead", _ahead)
    patch.setattr(rehearsal, "_grown", lambda device, work: 0)
    return launches


def rehearsal_of(shape, config) -> Rehearsal:
    """Of a model in 4 bits, as an engine plays it."""
    spec = ModelSpec.read(SHAPES[shape].config(), {})
    weights = _Weights(replace(spec, num_layers=SHALLOW), Placement(DEVICE, torch.float16))
    with torch.inference_mode():
        model = Decoder(weights, positions=spec.max_position)
        memory = PageMemory(
            spec, config.page_tokens, num_pages=1, dtype=torch.float16, device=DEVICE
        )
    builder = BatchBuilder(config.page_tokens, DEVICE, tiles=SEGMENT_TILES)
    builder._width = 16  # as on CUDA

    def stage(layers):
        codes = config.adapter_dtype.codes
        table = AdapterTable(spec, DEVICE, LoraCodes(codes) if codes else None)
        part = model.shallow(layers) if layers else model
        run = runner.ModelRunner(
            part, memory, table, builder, max_seqs=config.max_num_seqs,
            max_tokens=config.max_num_batched_tokens, max_drafts=config.drafts,
        )  # fmt: skip
        longest = pages_of_tokens(spec.max_position, config.page_tokens)
        return Stage(run, table, lambda: run.graphs(longest))

    return Rehearsal(stage, spec, config)


class _Weights(Weights):
    def __init__(self, spec, place):
        self.spec, self.place, self.narrow_head = spec, place, None
        self._used, self._tilings, self._prepack, self._int4 = set(), {}, False, False

    def _dense(self, name, shape):
        return torch.empty(shape, dtype=torch.float16, device=DEVICE)

    def _bias(self, module, size, wanted):
        return self._dense(module, (size,)) if wanted else None

    def _weight(self, module, size):
        inputs, outputs = size
        if module == "lm_head":
            return self._dense(module, (outputs, inputs))
        groups = (inputs // GROUP, outputs)
        return Quantised(
            codes=torch.empty(size, dtype=torch.uint8, device=DEVICE),
            scales=torch.empty(groups, dtype=torch.float16, device=DEVICE),
            zeros=torch.empty(groups, dtype=torch.int16, device=DEVICE),
            group=GROUP,
        )


@contextmanager
def _ahead(device, compilers):
    yield SimpleNamespace(kernels=0)


def _sent(arrays, device):
    kinds = {
        name: torch.from_numpy(np.empty(0, array.dtype)).dtype for name, array in arrays.items()
    }
    return {
        name: torch.empty(array.shape, dtype=kinds[name], device=DEVICE)
        for name, array in arrays.items()
    }
