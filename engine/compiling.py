"""Kernels are compiled before an engine is ready, many at a time, and counted when it is.

``Ahead`` runs code in which kernels are not launched: what each launch would need is compiled,
by ``Compilers`` where there are some, and loaded by threads. Tensor operations of torch run as
always, on whatever memory holds.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver
from triton.runtime._async_compile import AsyncCompileMode, FutureKernel
from triton.runtime.jit import JITFunction

from engine.compilers import Compilers, NotCompiled

THREADS = 16  # each waits for a kernel, then loads it

log = logging.getLogger(__name__)


class Ahead:
    """A context in which kernels are compiled instead of launched. CUDA only."""

    def __init__(self, device: torch.device, compilers: Compilers | None = None) -> None:
        self._pool = ThreadPoolExecutor(THREADS, initializer=torch.cuda.set_device,
                                        initargs=(device,))  # fmt: skip
        self._mode = _Elsewhere(self._pool, compilers)
        self._run: Any = JITFunction.run
        self._kinds: set[object] = set()  # of launches, told apart more finely than kernels
        self._met: set[tuple[str, str]] = set()
        self.kernels = 0  # compiled, or found in Triton's cache

    def __enter__(self) -> "Ahead":
        run = self._run

        def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **more: Any) -> Any:
            kind = _kind(kernel, args, more)
            if kind is None or kind not in self._kinds:
                self._kinds.add(kind)
                return run(kernel, *args, grid=grid, warmup=True, **more)
            return None

        JITFunction.run = compile_only
        knobs.runtime.jit_cache_hook = self._is_met
        self._mode.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        JITFunction.run = self._run
        knobs.runtime.jit_cache_hook = None
        self._mode.__exit__(*raised)
        kernels = [future.result() for future in self._mode.future_kernels.values()]
        self.kernels = len(kernels)
        list(self._pool.map(lambda kernel: kernel.run, kernels))  # loads it
        self._pool.shutdown()

    def _is_met(self, *, key: str, fn: Any, compile: dict[str, Any], **facts: object) -> bool:
        """Triton knows a kernel only when it is compiled: ask for each once."""
        known = (fn.name, str(key)) in self._met
        self._met.add((fn.name, str(key)))
        if not known:
            self._mode.ask(fn.module, fn.name, compile["specialization_data"])
        return known


class _Elsewhere(AsyncCompileMode):  # type: ignore[misc]
    """What is asked for is compiled by others first: then Triton finds it in its cache."""

    def __init__(self, pool: ThreadPoolExecutor, compilers: Compilers | None) -> None:
        super().__init__(pool)
        self._compilers = compilers
        self._asked: Future[None] | None = None

    def ask(self, module: str, kernel: str, facts: str) -> None:
        """Of the kernel that is submitted next."""
        if self._compilers is not None:
            target = driver.active.get_current_target()
            place = (target.backend, target.arch, target.warp_size)
            self._asked = self._compilers.compile(module, kernel, facts, place)

    def submit(
        self, key: str, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None]
    ) -> FutureKernel:
        asked, self._asked = self._asked, None

        def found() -> Any:
            if asked is not None:
                try:
                    asked.result()
                except NotCompiled as error:
                    log.warning("a kernel is compiled here: elsewhere it was not: %s", error)
            return compile_fn()

        return super().submit(key, found, finalize_fn)


def _kind(kernel: Any, args: tuple[Any, ...], more: dict[str, Any]) -> object:
    """What a launch's kernel depends on, at the least; None where that is not easily said."""
    try:
        positional = tuple(
            _trait(value, constant=param.is_constexpr)
            for param, value in zip(kernel.params, args, strict=False)
        )
        constants = {param.name for param in kernel.params if param.is_constexpr}
        named = {k: _trait(v, constant=k in constants) for k, v in more.items()}
        kind = (id(kernel), positional, tuple(sorted(named.items(), key=lambda item: item[0])))
        hash(kind)
    except TypeError:
        return None
    return kind


def _trait(value: Any, *, constant: bool) -> object:
    """Addresses count by alignment, numbers by whether they are 1, multiples of 16, or wide."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.data_ptr() % 16
    if isinstance(value, int) and not constant and not isinstance(value, bool):
        return value == 1, value % 16 == 0, value.bit_length() > 31
    if isinstance(value, list) or hasattr(value, "block_shape"):
        raise TypeError("not told apart by what is seen here")
    return value


class CompileCount:
    """Kernels that had to be compiled, or loaded, since ``begin``."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> int:
        return self._count

    def begin(self) -> None:
        knobs.runtime.jit_post_compile_hook = self._compiled

    def _compiled(self, *, key: str, repr: str, **facts: object) -> None:
        self._count += 1
        log.warning("compiled while serving: %s, as %s", repr, key)
