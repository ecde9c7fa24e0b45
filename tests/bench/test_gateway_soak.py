"""The soak's clients send what they were told to, and its slope says how sure it is."""

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from bench.gateway.load import LoadFailed
from bench.gateway.pump import Ask, Pump
from bench.gateway.soak import Sample, Slope, slope
from bench.gateway.traffic import Tenant, Traffic
from tests.bench.listening import listening
from tests.stack import ROOT

ANSWER = [(b"content-type", b"text/plain")]


async def echo(scope, receive, send):
    """``/STATUS/whole`` or ``/STATUS/chunks``."""
    if scope["type"] != "http":
        return
    _, status, how = scope["path"].split("/")
    while (await receive()).get("more_body"):
        pass
    length = [(b"content-length", b"4")] if how == "whole" else []
    start = {"type": "http.response.start", "status": int(status), "headers": ANSWER + length}
    await send(start)
    for number in range(4):
        await send({"type": "http.response.body", "body": b"x", "more_body": number < 3})


@pytest.fixture
async def port():
    async with listening(echo) as port:
        yield port


def asked(path: str, *statuses: int, **more: bool) -> Ask:
    sent = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}"
    return Ask(sent.encode(), statuses, **more)


async def test_every_request_is_sent_once_and_only_those_served_are_billed(port):
    asks = [
        asked("/200/whole", 200), asked("/200/chunks", 200), asked("/429/whole", 200, 429),
        asked("/200/whole", 200, billed=False), asked("/200/chunks", 200, leaves=True),
    ] * 20  # fmt: skip
    pump = Pump([port], iter(asks))
    await pump.run(4)
    assert pump.statuses == {200: 80, 429: 20}
    assert pump.billed == 60


async def test_an_answer_that_is_not_right_ends_the_soak(port):
    with pytest.raises(LoadFailed, match="401 where"):
        await Pump([port], iter([asked("/401/whole", 200)] * 3)).run(2)


def test_no_two_requests_are_alike_but_those_that_are_sent_again():
    traffic = Traffic([Tenant("org", f"key-{n}", ("a", "b")) for n in range(3)], Tenant("o", "k"))
    asks = list(traffic.asks(1000))
    again = [ask for ask in asks if b"idempotency-key" in ask.sent and not ask.billed]
    posted = [ask.sent for ask in asks if ask.sent.startswith(b"POST") and ask not in again]
    assert len(set(posted)) == len(posted)
    assert len(again) == 27
    assert {ask.sent for ask in again} < set(posted)


def sloping(mib: float, *, noise: float = 0.0, each: int = 10_000) -> Slope:
    return slope([Sample(n * each, 100 + n * each / 1e5 * mib + n % 2 * noise) for n in range(10)])


def test_the_slope_is_of_the_growth_and_its_error_of_the_noise():
    assert sloping(3.0).mib == pytest.approx(3.0)
    assert sloping(3.0).error == pytest.approx(0.0, abs=1e-6)
    noisy = sloping(0.0, noise=1.0)
    assert abs(noisy.mib) < 2 * noisy.error


def test_growth_is_told_from_none_and_from_what_cannot_be_told():
    assert sloping(0.5, noise=0.1).verdict == 0
    assert sloping(1.5, noise=0.1).verdict == 1
    assert sloping(0.5, noise=1.0, each=1_000).verdict == 2  # too few requests


def test_no_program_of_a_rig_outlives_it(tmp_path: Path) -> None:
    script = f"""
        import asyncio
        from pathlib import Path
        from tests.stack import Program
        async def main():
            program = Program("sleeper", ("-c", "import time; time.sleep(120)"))
            await program.start(Path({str(tmp_path / "log")!r}))
            print(program.process.pid, flush=True)
            await asyncio.sleep(120)
        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as rig:
        kill = threading.Timer(60.0, rig.kill)
        kill.start()
        assert rig.stdout is not None
        sleeper = int(rig.stdout.readline())
        rig.kill()
        kill.cancel()
        rig.wait(10.0)
    until = time.monotonic() + 30.0
    while running(sleeper) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(sleeper)


def running(pid: int) -> bool:
    """Nobody may have waited for one that has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
