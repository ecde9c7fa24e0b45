"""Starting, starting again, not being able to start, and ending without a trace."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.server import Server, eventually, free_ports, loratorio


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def files_of_the_model(data_dir: Path) -> dict[str, tuple[int, int]]:
    """Which files they are and when they were written."""
    found = {path.name: path.stat() for path in (data_dir / "demo").glob("*/*")}
    assert "model.safetensors" in found
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def test_a_second_start_reuses_the_data_and_open_needs_no_key(
    make_data_dir: Callable[[str], Path],
):
    data_dir = make_data_dir("again")
    with Server(data_dir) as first:
        keys = [tenant["api_key"] for tenant in first.ready["tenants"]]
    made = files_of_the_model(data_dir)
    assert not (data_dir / "ready.json").exists()
    with Server(data_dir, ("--demo", "--open")) as second:
        assert files_of_the_model(data_dir) == made
        assert [tenant["api_key"] for tenant in second.ready["tenants"]] == keys
        client = OpenAI(api_key="EMPTY", base_url=second.ready["base_url"])
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "用中文说你好"}], max_tokens=8
        )
        assert answer.choices[0].message.content
        short = client.responses.create(model=model, input="Hi", max_output_tokens=1)
        assert (short.temperature, short.top_p) == (0.2, 0.9)  # as the demo recommends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_no_process_outlives_the_server(make_data_dir: Callable[[str], Path], number: int):
    server = Server(make_data_dir("ended"))
    with server:
        assert server.process is not None
        pids = [server.pid_of("engine"), server.pid_of("gateway")]
        os.kill(server.process.pid, number)
        server.process.wait(30)
        assert eventually(lambda: not any(map(alive, pids)), 30)


def test_what_cannot_be_served_is_one_line_and_a_status(tmp_path: Path):
    data = ("--data-dir", str(tmp_path / "data"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = {
            f"--port {port}": ("--demo", "--port", str(port), *data),
            "is not a directory": ("--model", str(tmp_path / "none"), *data),
            "holds no config.json": ("--model", str(tmp_path), *data),
            "--data-dir": ("--demo", "--data-dir", "/proc/nothing"),
            "nothing to serve": data,
            "must be at least 1": ("--demo", "--tensor-parallel-size", "0", *data),
        }
        for reason, arguments in cases.items():
            ran = loratorio("serve", *arguments)
            assert ran.returncode not in (0, -1), reason
            assert reason in ran.stderr
            assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr


def test_an_engine_that_cannot_load_the_checkpoint_gives_its_reason_in_one_line(
    server: Server, tmp_path: Path
):
    broken = tmp_path / "broken"
    broken.mkdir()
    model = next((server.data_dir / "demo").glob("*/config.json")).parent
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            (broken / path.name).write_bytes(path.read_bytes())
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    port, metrics_port = free_ports(2)
    ran = loratorio(
        *("serve", "--model", str(broken), "--data-dir", str(tmp_path / "data")),
        *("--port", str(port), "--metrics-port", str(metrics_port)),
    )
    assert ran.returncode not in (0, -1)
    assert "model.safetensors" in ran.stderr.strip().splitlines()[-1]
    assert "Traceback" not in ran.stderr
