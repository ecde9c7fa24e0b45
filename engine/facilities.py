"""What an engine has where its settings ask for it or its files allow it, and else does without."""

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import StoreUnusable
from adapters.narrow import Narrow
from adapters.pack import PackedAdapter
from adapters.stores import Store, open_store
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.handoff.pages import TransferPages
from engine.host_pages import HostPages
from engine.matcher import Grammars
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.references import References, Rounding

MASK_THREADS = 8
LEAST_SLOTS = 2  # for pages on their way: one each way
ADAPTER_CACHE = "adapter-cache"  # in the data directory: copies of what is stored elsewhere
log = logging.getLogger(__name__)


def host_swap(config: EngineConfig, memory: PageMemory) -> HostPages | None:
    swap = HostPages(memory, config.swap_bytes)
    if not swap.slots:
        return None
    log.info("swap: %d pages, %.0f us each one way", swap.slots, 1e6 * swap.page_s)
    return swap


def page_transfer(config: EngineConfig, memory: PageMemory) -> TransferPages | None:
    """Raises ConfigError."""
    if not config.hands:
        return None
    transfer = TransferPages(memory, config.handoff_bytes, direct=config.handoff_direct)
    if transfer.slots < LEAST_SLOTS:
        raise ConfigError(
            f"handoff_bytes={config.handoff_bytes} must hold {LEAST_SLOTS} pages of "
            f"{transfer.page_bytes} bytes"
        )
    return transfer


def adapter_store(config: EngineConfig) -> Store | None:
    """Raises ConfigError."""
    if config.adapter_store is None:
        return None
    home = config.data_dir or tempfile.mkdtemp(prefix="loratorio-")
    try:
        return open_store(config.adapter_store, cache=Path(home) / ADAPTER_CACHE)
    except StoreUnusable as error:
        raise ConfigError(f"--adapter-store: {error}") from error


def references(
    config: EngineConfig,
    store: Store | None,
    base: BaseSpec,
    size: Callable[[PackedAdapter], int],
    dtype: torch.dtype,
) -> References | None:
    if store is None:
        return None
    codes = config.adapter_dtype.codes
    rounding = None if codes is None else Rounding(dtype, Narrow(codes))
    return References(config.model, store, base, size, rounding)


def grammars_of(config: EngineConfig, spec: ModelSpec, device: torch.device) -> Grammars | None:
    """None where answers cannot be held to any: nobody says what the tokens spell, say."""
    tokenizer = Path(config.model) / "tokenizer.json"
    if not tokenizer.is_file():
        return None
    try:
        from engine.grammars import LlGrammars
    except ImportError as error:  # a bare machine, for measurements
        log.warning("requests with a grammar are refused: %s", error)
        return None
    cores = len(os.sched_getaffinity(0))
    threads = 1 if device.type == "cpu" else max(1, min(MASK_THREADS, cores // 2))
    return LlGrammars(
        tokenizer, vocab_size=spec.vocab_size, eos=sorted(spec.eos_tokens), threads=threads
    )
