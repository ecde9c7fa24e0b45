"""A server whose engine is three processes answers as one does, and leaves none behind.

Three, as the demo model has nine heads.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import PLAIN, Server, eventually

CLOSE = 0.15  # of a log-probability, in bfloat16
ASKED = [{"role": "user", "content": "Where does the sun go at night?"}]


def first(server: Server, model: str) -> dict[str, float]:
    """The likeliest first tokens of an answer and their log-probabilities."""
    answer = server.client().chat.completions.create(
        model=model, messages=ASKED, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return {top.token: top.logprob for top in logprobs.content[0].top_logprobs}


def followers(engine: int) -> list[int]:
    """Processes that the engine has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == engine and b"engine.team" in line:
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_three_processes_answer_as_one_and_end_with_any_of_them(
    server: Server, make_data_dir: Callable[[str], Path]
):
    with Server(make_data_dir("team"), ("--demo", *PLAIN, "--tensor-parallel-size", "3")) as team:
        for model in (team.base, team.adapters(0)[0]):
            expected, found = first(server, model), first(team, model)
            assert max(found, key=found.__getitem__) in expected
            for token in expected.keys() & found.keys():
                assert found[token] == pytest.approx(expected[token], abs=CLOSE)
        members = followers(team.pid_of("engine"))
        assert len(members) == 2
        os.kill(members[0], signal.SIGKILL)
        assert eventually(lambda: "the engine ends: member" in team.log, 20.0), team.log
        assert eventually(lambda: not any(map(alive, members)), 20.0)
    assert "has ended: signal 9" in team.log
