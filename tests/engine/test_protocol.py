"""Messages survive the wire, older peers understand newer ones, and nothing else is loaded."""

import subprocess
import sys
from typing import get_args

import msgspec
import pytest

from engine import protocol
from engine.protocol import (
    AdapterRef,
    BaseInfo,
    Counts,
    Finish,
    Hello,
    Load,
    Output,
    RefusalCode,
    Refused,
    Sampling,
    Step,
    Submit,
    ToEngine,
    ToGateway,
    TokenLogprobs,
    Usage,
    Welcome,
)

BASE = BaseInfo("f", "LlamaForCausalLM", 97, "gptq", "float16")
TO_ENGINE = [
    Hello("gw"),
    Submit("r1", "t", [1, 2, 3], 4),
    Submit(
        "r2", "t", [1], 4, Sampling(temperature=0.0, seed=2**62, logit_bias=[(5, -1.5)]),
        AdapterRef("d1", 16), n=2, stop_tokens=[7], logprobs=0, granted=10, deadline_ms=5,
    ),
    Submit("r3", "t", [1], 1, ticket=protocol.Ticket("t1", b"secret", "tcp:h:1")),
    protocol.Forgo("r1"),
    protocol.Grant("r1", 9),
    protocol.Cancel("r1"),
    protocol.Prefetch(AdapterRef("d1", 16)),
    protocol.Retire("d1"),
    protocol.Drain(),
    protocol.AskMetrics(),
    protocol.AskCounts(["r1", "r2"]),
    protocol.AskReference("r", AdapterRef("d", 8, (5, 6)), [1, 2, 3], [[4], [5, 6]]),
    protocol.AskRecorded(10, 500),
]  # fmt: skip
TO_GATEWAY = [
    Welcome("e", "b", BASE, 4096, 64, 100),
    Step(
        [
            Output("r1", [5], logprobs=[TokenLogprobs(-0.5, [(5, -0.5)])]),
            Output("r1", [], Finish.STOP, index=1, usage=Usage(3, 0, 1), stop_token=2),
        ]
    ),
    Refused("r1", RefusalCode.QUEUE_FULL, "full", 50),
    Load(1, 2, 3, 4, ["d1"]),
    protocol.Metrics("# HELP"),
    Counts("r1", "b", 3, 4, True),
    protocol.Verdict("r", [[-0.5], [-1.0, -2.0]], 3, base=[[-0.7], [-1.0, -2.0]]),
    protocol.Recorded([Counts("r1", "b", 3, 4, True)]),
    protocol.Goodbye("drained"),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda m: type(m).__name__)
def test_what_a_gateway_says_arrives_unchanged(message: ToEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToEngine) == message


@pytest.mark.parametrize("message", TO_GATEWAY, ids=lambda m: type(m).__name__)
def test_what_an_engine_says_arrives_unchanged(message: ToGateway) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToGateway) == message


def test_every_message_has_an_example_here() -> None:
    examples = {type(message) for message in [*TO_ENGINE, *TO_GATEWAY]}
    assert examples == {*get_args(ToEngine), *get_args(ToGateway)}


def test_a_field_appended_by_a_newer_peer_is_passed_over() -> None:
    frame = msgspec.msgpack.encode(["Cancel", "r1", [], "a field of tomorrow"])
    assert msgspec.msgpack.decode(frame, type=ToEngine) == protocol.Cancel("r1")


def test_fields_an_older_peer_does_not_send_take_their_defaults() -> None:
    frame = msgspec.msgpack.encode(["Submit", "r1", "t", [1], 4])
    assert msgspec.msgpack.decode(frame, type=ToEngine) == Submit("r1", "t", [1], 4)


def test_nothing_a_gateway_or_the_scheduler_imports_loads_torch() -> None:
    modules = ["client", "core", "server", "scheduler", "cli", "built", "__main__"]
    code = (
        f"import sys, {', '.join(f'engine.{m}' for m in modules)}; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
