"""Settings are checked once, and what is wrong is said with its numbers."""

import pytest

from engine.cli import Serve, Tool, parse
from engine.config import Device, Dtype, EngineConfig
from engine.errors import ConfigError
from engine.protocol import Role


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"page_tokens": 0}, "page_tokens=0 must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_num_batched_tokens": 128}, "max_num_batched_tokens=128 .* max_num_seqs=256"),
        ({"max_num_seqs": 1, "max_num_batched_tokens": 1}, "must be at least 2"),
        ({"max_model_len": 1}, "max_model_len=1 must be at least 2"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization=0.0"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization=1.2"),
        ({"threads": 0}, "threads=0"),
        ({"pool_bytes": -1}, "pool_bytes=-1"),
        ({"grant_timeout_s": -1.0}, "grant_timeout_s=-1.0"),
        ({"role": Role.DECODE}, "handoff_listen says where"),
        (
            {"handoff_listen": "unix:/tmp/e"},
            "handoff_listen=unix:/tmp/e must be one of tcp:",
        ),
        ({"handoff_listen": "tcp:h:70000"}, "handoff_listen=tcp:h:70000"),
        ({"handoff_bytes": 0}, "handoff_bytes=0"),
        ({"handoff_timeout_s": 0.0}, "handoff_timeout_s=0.0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_number_is_named(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig(model="m", **changes)  # type: ignore[arg-type]


def test_credits_fill_the_engine_and_its_queue() -> None:
    assert EngineConfig(model="m", max_num_seqs=4, max_waiting=6).credits == 11


FLAGS = """
serve --model m --listen unix:e.sock --adapter-store a --data-dir d --device cpu --dtype bfloat16
--threads 2 --max-model-len 100 --max-num-seqs 4 --max-num-batched-tokens 64 --block-size 16
--gpu-memory-utilization 0.5 --pool-bytes 1000 --host-cache-bytes 2000 --swap-bytes 0 --ready-fd 5
--drain-timeout 3 --deterministic --enforce-eager --role decode --handoff-listen tcp:0.0.0.0:8472
--handoff-advertise tcp:gpu-1:8472 --handoff-bytes 3000 --handoff-timeout 4 --no-handoff-direct
"""


def test_flags_become_settings() -> None:
    command = parse(FLAGS.split())
    assert isinstance(command, Serve)
    assert command.ready_fd == 5
    assert command.config == EngineConfig(
        model="m",
        listen="unix:e.sock",
        adapter_store="a",
        data_dir="d",
        device=Device.CPU,
        dtype=Dtype.BFLOAT16,
        threads=2,
        max_model_len=100,
        max_num_seqs=4,
        deterministic=True,
        max_num_batched_tokens=64,
        page_tokens=16,
        gpu_memory_utilization=0.5,
        enforce_eager=True,
        pool_bytes=1000,
        host_cache_bytes=2000,
        swap_bytes=0,
        drain_timeout_s=3.0,
        role=Role.DECODE,
        handoff_listen="tcp:0.0.0.0:8472",
        handoff_advertise="tcp:gpu-1:8472",
        handoff_bytes=3000,
        handoff_timeout_s=4.0,
        handoff_direct=False,
    )


def test_without_flags_the_defaults_hold() -> None:
    command = parse(["serve", "--model", "m"])
    assert isinstance(command, Serve)
    assert command.config == EngineConfig(model="m")


def test_a_small_token_budget_alone_is_no_contradiction() -> None:
    command = parse(["serve", "--model", "m", "--max-num-batched-tokens", "64"])
    assert isinstance(command, Serve)
    assert command.config.max_num_seqs == 64


@pytest.mark.parametrize("tool", ["demo", "bench", "plan"])
def test_a_tool_keeps_its_own_arguments(tool: str) -> None:
    assert parse([tool, "out", "--cache", "c"]) == Tool(tool, ("out", "--cache", "c"))


@pytest.mark.parametrize("line", ["", "serve", "serve --model m --device tpu", "nonsense"])
def test_a_wrong_command_line_says_so_in_one_line(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(line.split())
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
