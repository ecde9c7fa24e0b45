"""A start tells what it took, phase by phase."""

import logging
import time

from engine.timeline import Timeline


def test_each_phase_is_what_passed_since_the_last_mark(caplog):
    times = iter([12.5, 13.0, 20.25])
    timeline = Timeline(began=10.0, clock=lambda: next(times))
    for phase in ("imports", "weights", "67 kernels"):
        timeline.mark(phase)
    with caplog.at_level(logging.INFO):
        timeline.tell()
    assert timeline.phases == [("imports", 2.5), ("weights", 0.5), ("67 kernels", 7.25)]
    assert caplog.messages == [
        "started in 10.25 s: imports 2.50 s, weights 0.50 s, 67 kernels 7.25 s"
    ]


def test_a_process_began_before_it_asks():
    timeline = Timeline.of_process()
    timeline.mark("imports")
    [(_, seconds)] = timeline.phases
    assert 0 < seconds < time.clock_gettime(time.CLOCK_BOOTTIME)
