import subprocess
import sys

from engine.collector import BUSY_S, RESTED_S, Collector
from tests.fakes.clock import FakeClock as Clock

SCRIPT = """
import gc
from engine.collector import begin_serving
begin_serving()
kept = []
for _ in range(200_000):  # enough for many looks at everything
    kept.append([])
assert gc.get_stats()[2]["collections"] == BEFORE, gc.get_stats()
assert gc.get_stats()[1]["collections"] > 10
"""


def collector(clock):
    looks = []
    return Collector(clock, lambda: looks.append(clock())), looks


def test_it_looks_at_rest_after_work_and_not_again_before_more_of_it():
    clock = Clock()
    found, looks = collector(clock)
    clock.now += RESTED_S
    found.rests()
    assert looks == []  # nothing was done
    found.worked()
    found.rests()
    found.rests()
    assert len(looks) == 1


def test_a_short_rest_is_left_alone():
    clock = Clock()
    found, looks = collector(clock)
    clock.now += RESTED_S / 2
    found.worked()
    found.rests()
    assert looks == []


def test_a_loop_that_never_rests_looks_once_in_a_long_while():
    clock = Clock()
    found, looks = collector(clock)
    for _ in range(int(3.5 * BUSY_S)):
        clock.now += 1
        found.worked()
    assert len(looks) == 3


def test_python_does_not_look_at_everything_by_itself():
    script = SCRIPT.replace("BEFORE", "1")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
