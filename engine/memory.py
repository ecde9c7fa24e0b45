"""How many pages the pool gets.

On CUDA: what ``gpu_memory_utilization`` of the device leaves after the weights, the largest
forward pass (full token budget, every row sampling, every row with an adapter) and the captured
decode passes, which are tried to be measured (``rehearsal``). On CPU: room for 64 sequences of
1024 tokens and for 256 MiB of adapters, at most half of the memory that is free; pages never
touched cost nothing there. What a proposer keeps beside each page is part of it. ``pool_bytes``,
of the pool alone, overrides both.
The pool always holds one sequence of the longest length: otherwise OutOfMemory, or, when no
length was configured, a shorter longest length.
"""

from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.errors import OutOfMemory
from engine.models.spec import ModelSpec
from engine.page_size import page_elements, pages_of_tokens

CPU_SEQUENCES = 64
CPU_TOKENS = 1024
CPU_ADAPTER_BYTES = 256 << 20
CPU_SHARE = 0.5  # of the memory that is free


class PoolSize:
    """The sizes that follow from a model, a page size and a dtype."""

    def __init__(
        self, config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, *, beside: int = 0
    ) -> None:
        """``beside``: bytes that a proposer keeps for each page."""
        self._config, self._spec, self._beside = config, spec, beside
        item, narrow = dtype.itemsize, config.kv_cache_dtype.narrow
        elements = page_elements(spec, config.page_tokens, item=item, narrow=narrow)
        self.page_bytes = elements * item
        self.longest = config.max_model_len or spec.max_position  # tokens

    def pages(self, device: torch.device, beside: int) -> int:
        """Pages of the pool. ``beside``: bytes to leave free for passes (CUDA only).

        Raises OutOfMemory.
        """
        budget = self._config.pool_bytes
        each = self.page_bytes + (self._beside if budget is None else 0)
        if budget is None and device.type == "cuda":
            budget = _left_on_cuda(device, self._config.gpu_memory_utilization) - beside
        if budget is None:
            budget = self._modest()
        pages = budget // each
        needed = self._pages(self.longest if self._config.max_model_len else 1)
        if pages < needed:
            raise OutOfMemory(
                f"{budget >> 20} MiB hold {max(pages, 0)} pages of {each >> 10} KiB; "
                f"one sequence of {self.longest} tokens takes {needed}. Lower max_model_len, or "
                "give the pool more memory (pool_bytes, gpu_memory_utilization)"
            )
        return pages

    def max_model_len(self, pages: int) -> int:
        """Tokens of the longest sequence this pool holds, at most the configured limit."""
        return min(self.longest, pages * self._config.page_tokens)

    def _modest(self) -> int:
        sequences = min(self._config.max_num_seqs, CPU_SEQUENCES)
        tokens = max(sequences * min(self.longest, CPU_TOKENS), self.longest)
        wanted = self._pages(tokens) * (self.page_bytes + self._beside) + CPU_ADAPTER_BYTES
        return min(wanted, int(CPU_SHARE * free_host_bytes()))

    def _pages(self, tokens: int) -> int:
        return pages_of_tokens(tokens, self._config.page_tokens)


def free_host_bytes() -> int:
    """Memory this process may still take: the machine's, or its control group's if less."""
    free = _meminfo_available()
    limit, current = (
        _number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current")
    )
    if limit is not None and current is not None:
        free = min(free, max(limit - current, 0))
    return free


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 4 << 30


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no control group, or "max"
        return None


def _left_on_cuda(device: torch.device, utilization: float) -> int:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return int(utilization * total) - (total - free)
