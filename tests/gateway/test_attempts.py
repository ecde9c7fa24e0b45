"""Guessing passwords gets slower."""

from gateway.identity.attempts import Attempts


def test_each_failure_past_the_free_ones_doubles_the_wait_up_to_a_bound():
    now = [0.0]
    attempts = Attempts(clock=lambda: now[0])
    waits = []
    for _ in range(14):
        attempts.failed("name")
        waits.append(attempts.wait_s("name"))
    assert waits[:7] == [0, 0, 0, 0, 15, 30, 60]
    assert waits[-1] == 900
    now[0] += 3601
    attempts.failed("name")
    assert attempts.wait_s("name") == 0, "an hour of peace forgets"
