"""The process: ready line, signals, exit codes and one-line errors."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.protocol import Finish, RefusalCode
from engine.stream import EngineLost, RequestRefused
from tests.e2e.server import free_port
from tests.engine.harness import submit
from tests.engine.pages_of_metrics import Page

pytestmark = pytest.mark.slow

FAKE = """
import sys
from engine.__main__ import serve
from engine.config import EngineConfig
from tests.fakes.runner import build
parts = build(num_pages=600, max_model_len=2000)
parts.runner.pass_seconds, parts.runner.keep_plans = 0.005, False
config = EngineConfig(
    model="/models/fake", listen=sys.argv[1], data_dir=sys.argv[2], page_tokens=4,
    metrics_port=int(sys.argv[4]),
)
sys.exit(serve(config, parts.built, ready_fd=int(sys.argv[3])))
"""


class Process:
    """An engine of fakes in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.address = f"unix:{directory}/e.sock"
        self.metrics_port = free_port()
        reading, writing = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", FAKE, self.address, str(directory), str(writing)),
                str(self.metrics_port),
            ],
            pass_fds=[writing],
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writing)
        with os.fdopen(reading) as ready:
            self.ready = ready.read()

    async def connect(self) -> EngineClient:
        return await EngineClient.connect(self.address, gateway="gw")

    def exit_code(self) -> int:
        _, self.errors = self.process.communicate(timeout=20)
        return self.process.returncode


def test_a_scrape_of_its_own_port_names_the_model(tmp_path: Path) -> None:
    engine = Process(tmp_path)
    url = f"http://127.0.0.1:{engine.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        page = Page(answer.read().decode())
    assert page.labels("vllm:num_requests_running") == {"model_name": "fake", "engine": "engine"}
    assert page.value("vllm:cache_config_info", block_size="4", num_gpu_blocks="600") == 1
    engine.process.send_signal(signal.SIGTERM)
    assert engine.exit_code() == 0


async def test_it_says_when_it_is_ready_and_drains_on_sigterm(tmp_path: Path) -> None:
    engine = Process(tmp_path)
    assert engine.ready.startswith(f"ready {engine.address}")
    client = await engine.connect()
    async with client.generate(submit(max_tokens=100)) as stream:
        await anext(aiter(stream))
        engine.process.send_signal(signal.SIGTERM)
        outputs = [output async for output in stream]
    assert outputs[-1].finish is Finish.LENGTH
    await client.wait_lost()
    assert client.goodbye == "drained"
    await client.close()
    assert engine.exit_code() == 0


async def test_a_killed_engine_is_noticed_at_once_and_its_record_survives(tmp_path: Path) -> None:
    engine = Process(tmp_path)
    client = await engine.connect()
    async with client.generate(submit("done", max_tokens=5)) as stream:
        assert [output async for output in stream][-1].finish is Finish.LENGTH
    async with client.generate(submit("cut", max_tokens=1900)) as stream:
        await anext(aiter(stream))
        engine.process.kill()
        with pytest.raises(EngineLost):
            async for _ in stream:
                pass
    await client.close()
    engine.exit_code()
    again = Process(tmp_path)
    client = await again.connect()
    done, cut = await client.counts(["done", "cut"])
    assert (done.completion_tokens, done.finished) == (5, True)
    assert (cut.prompt_tokens, cut.finished) == (3, False)
    assert done.boot != client.welcome.boot
    await client.close()
    again.process.terminate()
    assert again.exit_code() == 0


async def drains(client: EngineClient) -> None:
    """Return once the engine refuses new work."""
    for i in range(1000):
        try:
            async with client.generate(submit(f"probe{i}", max_tokens=1)) as stream:
                await anext(aiter(stream))
        except RequestRefused as refused:
            if refused.code is RefusalCode.DRAINING:
                return
    raise AssertionError("it goes on taking requests")


async def test_a_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    engine = Process(tmp_path)
    client = await engine.connect()
    async with client.generate(submit(max_tokens=1900)) as stream:
        await anext(aiter(stream))
        engine.process.send_signal(signal.SIGINT)
        await drains(client)  # two signals sent at once would arrive as one
        engine.process.send_signal(signal.SIGINT)
        with pytest.raises(EngineLost):
            async for _ in stream:
                pass
    await client.close()
    assert engine.exit_code() != 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--max-num-seqs", "0"], "max_num_seqs=0", id="setting"),
        pytest.param([], "no/such/model", id="model"),
    ],
)
def test_what_prevents_serving_is_said_in_one_line(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "engine", "serve", "--model", "/no/such/model", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
