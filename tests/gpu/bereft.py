"""An engine on two GPUs loses a follower in the middle of an answer; prints how it ended.

python -m tests.gpu.bereft CHECKPOINT
"""

import json
import os
import signal
import sys
import time

from engine.bench.alone import LoneEngine, Requests
from engine.config import EngineConfig
from engine.errors import MemberLost
from engine.team.adapters import TeamAdapters
from engine.team.ending import end_process


def main(model: str) -> None:
    engine = LoneEngine(
        EngineConfig(model=model, max_model_len=2048, max_num_seqs=8, tensor_parallel_size=2)
    )
    memory = engine.built.memory
    assert isinstance(memory, TeamAdapters)
    engine.submit("long", engine.random_prompt(32, seed=0), 1500)
    passes, began = engine.passes(Requests()), 0.0
    for _ in range(20):
        next(passes)
    (follower,) = memory.lead.processes
    os.kill(follower, signal.SIGKILL)
    began = time.monotonic()
    try:
        for _ in passes:
            pass
        reason = ""
    except MemberLost as lost:
        reason = str(lost)
    print(json.dumps({"reason": reason, "seconds": time.monotonic() - began}))  # noqa: T201
    engine.built.close()
    end_process(0)


if __name__ == "__main__":
    main(sys.argv[1])
