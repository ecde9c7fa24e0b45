from engine.speculation.payoff import (
    EMPTY,
    LONGEST_PAUSE,
    LONGEST_REST,
    LOOK,
    PAUSE,
    PLAIN,
    REST,
    TRIED,
    Payoff,
)

COUNT = 8  # sequences


def plain(payoff: Payoff, times: int, seconds: float = 0.01) -> None:
    for _ in range(times):
        payoff.took(seconds, sequences=COUNT, verified=0, kept=0)


def verifying(payoff: Payoff, times: int, *, seconds: float, kept: int) -> int:
    """How many passes verified before they did not pay, at most so many."""
    for count in range(times):
        if not payoff.pays(COUNT):
            return count
        payoff.took(seconds, sequences=COUNT, verified=4 * COUNT, kept=kept)
    return times


def test_plain_passes_come_first_and_then_drafts_that_pay_go_on() -> None:
    payoff = Payoff()
    for _ in range(PLAIN):
        assert not payoff.pays(COUNT)
        plain(payoff, 1)
    assert verifying(payoff, 500, seconds=0.0125, kept=2 * COUNT) == LOOK  # a plain one is due
    plain(payoff, 1)
    assert payoff.pays(COUNT)
    gain = payoff.gain(COUNT)
    assert gain is not None
    assert abs(gain - 3 * 0.01 / 0.0125) < 1e-6


def test_drafts_that_do_not_pay_rest_for_longer_each_time() -> None:
    payoff, rests = Payoff(), []
    plain(payoff, PLAIN)
    for _ in range(9):
        assert verifying(payoff, 500, seconds=0.0125, kept=1) == TRIED
        rested = 0
        while not payoff.pays(COUNT):
            plain(payoff, 1)
            rested += 1
        rests.append(rested)
    assert rests == [min(REST * 2**i, LONGEST_REST) for i in range(9)]


def test_it_takes_more_to_start_than_to_go_on() -> None:
    barely = 0.0103  # one draft in two kept: 1.5 / 1.46
    payoff = Payoff()
    plain(payoff, PLAIN, 0.00705)
    assert verifying(payoff, 500, seconds=barely, kept=COUNT // 2) == TRIED
    payoff = Payoff()
    plain(payoff, PLAIN, 0.00705)
    assert verifying(payoff, 40, seconds=barely / 1.5, kept=COUNT // 2) == 40
    assert verifying(payoff, 24, seconds=barely, kept=COUNT // 2) == 24


def test_batches_of_other_sizes_are_judged_by_themselves() -> None:
    payoff = Payoff()
    plain(payoff, PLAIN)
    verifying(payoff, 500, seconds=0.05, kept=1)
    assert not payoff.pays(COUNT)
    for _ in range(PLAIN):
        payoff.took(0.01, sequences=1, verified=0, kept=0)
    assert payoff.pays(1)


def test_passes_run_ahead_for_a_while_when_nobody_makes_drafts() -> None:
    payoff, pauses = Payoff(ahead=True), []
    plain(payoff, PLAIN)
    for _ in range(4):
        for _ in range(EMPTY):
            assert payoff.pays(COUNT)
            plain(payoff, 1)
        paused = 0
        while not payoff.pays(COUNT):
            plain(payoff, 1)
            paused += 1
        pauses.append(paused)
    assert pauses == [min(PAUSE * 2**i, LONGEST_PAUSE) for i in range(4)]
    waiting = Payoff()
    plain(waiting, 500)
    assert waiting.pays(COUNT)
