"""Two threads meet at a bounded queue."""

import threading
import time

from engine.mailbox import Mailbox


def test_everything_is_taken_at_once_in_order() -> None:
    box: Mailbox[int] = Mailbox(10)
    for i in range(3):
        assert box.put(i)
    assert (box.take(), box.take()) == ([0, 1, 2], [])


def test_a_full_box_refuses_unless_forced() -> None:
    box: Mailbox[int] = Mailbox(1)
    assert box.put(0)
    assert not box.put(1)
    assert box.put(2, force=True)
    assert box.take() == [0, 2]


def test_a_taker_wakes_when_something_is_put() -> None:
    box: Mailbox[int] = Mailbox(1)
    threading.Timer(0.01, lambda: box.put(7)).start()
    assert box.take(timeout_s=5) == [7]


def test_a_putter_waits_for_room() -> None:
    box: Mailbox[int] = Mailbox(1)
    box.put(0)
    threading.Timer(0.01, box.take).start()
    assert box.put(1, timeout_s=5)


def test_taking_from_an_empty_box_ends_in_time() -> None:
    started = time.monotonic()
    assert Mailbox[int](1).take(timeout_s=0.01) == []
    assert time.monotonic() - started < 2


def test_the_other_side_is_told_of_each_put() -> None:
    box: Mailbox[int] = Mailbox(4)
    told: list[int] = []
    box.on_put = lambda: told.append(1)
    box.put(0)
    box.put(1)
    assert told == [1, 1]
