"""Programs are started, restarted and stopped in order, and none outlives the supervisor."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli.child import Child, Program
from gateway.cli.supervisor import Backoff, StartFailed, Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses Linux process facilities")

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"


def program(name: str, code: str, *, stop_seconds: float = 5.0) -> Program:
    argv = (sys.executable, "-c", textwrap.dedent(code))
    return Program(name=name, argv=argv, stop_seconds=stop_seconds)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Recorder:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def line(self, name: str, text: str) -> None:
        self.lines.append((name, text))

    def say(self, text: str) -> None:
        self.lines.append(("loratorio", text))

    def index(self, name: str, text: str) -> int:
        return self.lines.index((name, text))


def test_backoff_doubles_to_its_limit_and_forgets_after_a_healthy_run():
    backoff = Backoff(first=0.5, most=4.0, healthy=60.0)
    assert [backoff.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert backoff.after(61.0) == 0.5
    assert backoff.after(1.0) == 1.0


async def test_a_program_that_ends_before_the_server_answered_is_a_failed_start():
    seen = Recorder()
    lasting = Child(program("gateway", SLEEPER), seen.line)
    failing = Child(program("engine", "print('no such model'); raise SystemExit(2)"), seen.line)
    supervisor = Supervisor([lasting, failing], probe=_never, say=seen.say)
    with pytest.raises(StartFailed, match="no such model") as caught:
        await supervisor.run(lambda: None)
    assert (caught.value.name, caught.value.code) == ("engine", 2)
    assert lasting.pid is not None
    assert not alive(lasting.pid)


async def test_a_program_killed_while_serving_is_started_again():
    seen, engine_pids = Recorder(), set()
    engine = Child(program("engine", SLEEPER), seen.line)

    async def scenario() -> None:
        while len(engine_pids) < 2:
            if engine.pid and engine.pid not in engine_pids and alive(engine.pid):
                engine_pids.add(engine.pid)
                if len(engine_pids) == 1:
                    await ready.wait()
                    os.kill(engine.pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    ready = asyncio.Event()
    supervisor = Supervisor([engine], probe=_always, say=seen.say)
    async with asyncio.timeout(20):
        await asyncio.gather(supervisor.run(ready.set), scenario())
    assert any("killed by SIGKILL" in text for _, text in seen.lines)
    assert not any(alive(pid) for pid in engine_pids)


async def test_programs_are_stopped_in_the_order_given_and_may_drain():
    seen = Recorder()
    draining = """
        import signal, sys, time
        def end(*_):
            time.sleep(0.3); print('drained', flush=True); sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print('up', flush=True)
        time.sleep(60)
    """
    children = [Child(program(name, draining), seen.line) for name in ("gateway", "engine")]

    async def both_up() -> bool:
        return {("gateway", "up"), ("engine", "up")} <= set(seen.lines)

    supervisor = Supervisor(children, probe=both_up, say=seen.say)
    async with asyncio.timeout(20):
        await supervisor.run(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert seen.index("gateway", "drained") < seen.index("engine", "drained")


async def test_a_program_that_ignores_the_request_to_stop_is_killed():
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
    child = Child(program("engine", stubborn, stop_seconds=0.3), Recorder().line)
    await child.start()
    while child.last_line() != "up":
        await asyncio.sleep(0.02)
    await child.stop()
    assert child.pid is not None
    assert not alive(child.pid)


def test_no_program_outlives_a_supervisor_that_is_killed(tmp_path: Path):
    script = f"""
        import asyncio
        from gateway.cli.child import Child, Program
        from gateway.cli.supervisor import Supervisor
        async def main():
            names = ("gateway", "engine")
            children = [
                Child(Program(name=n, argv={(sys.executable, "-c", SLEEPER)!r}, stop_seconds=5),
                      lambda *_: None) for n in names]
            async def up(): return all(c.last_line() == "up" for c in children)
            await Supervisor(children, probe=up, say=print).run(
                lambda: print(*[c.pid for c in children], flush=True))
        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        supervisor.send_signal(signal.SIGKILL)
        assert eventually(lambda: not any(map(alive, pids)))


async def test_long_and_unfinished_lines_of_output_are_passed_on_whole():
    seen = Recorder()
    child = Child(program("engine", "print('x' * 300_000); print('end', end='')"), seen.line)
    await child.start()
    assert await child.wait() == 0
    assert [len(text) for _, text in seen.lines] == [300_000, 3]


async def _never() -> bool:
    return False


async def _always() -> bool:
    return True
