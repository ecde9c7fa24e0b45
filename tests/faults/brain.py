"""The engine's own program, its model replaced by a runner without tensors.

    python -m tests.faults.brain ADDRESS DATA_DIR SECONDS_PER_PASS [REDIS]

Scheduling, wire, counts on disk and signals are the real ones: to be killed and stopped in tests.
"""

import dataclasses
import sys

import msgspec

from engine.__main__ import serve
from engine.config import EngineConfig
from tests.fakes.runner import build

PAGE_TOKENS = 16

if __name__ == "__main__":
    address, data_dir, pass_seconds, *register = sys.argv[1:]
    parts = build(num_pages=4000, page_tokens=PAGE_TOKENS)
    parts.runner.keep_plans = False
    parts.runner.pass_seconds = float(pass_seconds)
    config = EngineConfig(
        model="none", listen=address, data_dir=data_dir, page_tokens=PAGE_TOKENS, max_num_seqs=64,
        register=register[0] if register else None,
    )  # fmt: skip
    base = msgspec.structs.replace(parts.built.base, vocab_size=1000)
    sys.exit(serve(config, dataclasses.replace(parts.built, base=base, max_model_len=2048)))
