"""A flood of one tenant, in simulated time: what others notice is bounded, and costs little.

Exactly repeatable: each pass takes what it is said to take, and nothing is computed.
"""

from dataclasses import replace

import pytest

from engine.bench.flood import Scene, flood
from engine.bench.simulated import CPU, GPU, Costs, SimulatedEngine
from engine.bench.traffic import Arrival, Player, Stream, arrivals
from engine.config import EngineConfig
from tests.engine.harness import Harness, config
from tests.fakes.runner import build

pytestmark = pytest.mark.slow


def engine(costs: Costs, seats: int, *, max_step_s: float | None = None) -> SimulatedEngine:
    made = EngineConfig(model="simulated", max_num_seqs=seats, max_waiting=200)
    return SimulatedEngine(made, costs, pages=4000, max_step_s=max_step_s)


def player(of: SimulatedEngine) -> Player:
    return Player(of.core, clock=of.clock, sleep=of.clock.sleep)


@pytest.mark.parametrize(
    ("costs", "seats", "max_step_s", "scene"),
    [
        (CPU, 16, None, Scene(prompt=60, answer=40)),
        (CPU, 16, None, Scene(prompt=60, answer=200, seconds=100)),  # places are held for long
        (GPU, 64, 0.025, Scene(prompt=256, answer=64, seconds=3)),
        (GPU, 256, 0.025, Scene(prompt=256, answer=64, seconds=5)),  # no pass is without prompts
    ],
    ids=["short answers", "long answers", "device", "device with many places"],
)
def test_others_hardly_notice_a_flood(costs, seats, max_step_s, scene) -> None:
    verdict = flood(lambda: player(engine(costs, seats, max_step_s=max_step_s)), scene)
    assert verdict.slower <= 2.0
    assert verdict.throughput >= 0.95


def test_two_who_both_flood_are_served_alike_and_by_weight() -> None:
    of = engine(CPU, 8)
    served = of.core.scheduler.fairness
    streams = [Stream(tenant="short", rate=5, prompt=100, answer=10),
               Stream(tenant="long", rate=5, prompt=10, answer=100)]  # fmt: skip
    gaps = []

    def look() -> None:
        if min(len(of.core.scheduler.lines().get(s.tenant, [])) for s in streams):
            gaps.append(abs(served["short"] - served["long"]))

    player(of).play(arrivals(streams, 120), until_s=120, each=look)
    assert len(gaps) > 500
    assert max(gaps) <= served.gap_bound(8, longest_prompt=100, longest_answer=100)


def test_many_short_answers_do_not_keep_a_longer_one_waiting() -> None:
    of = engine(CPU, 16)
    served = of.core.scheduler.fairness
    streams = [Stream(tenant="short", rate=12, prompt=64, answer=1),
               Stream(tenant="long", rate=2, prompt=300, answer=100)]  # fmt: skip
    gaps = []

    def look() -> None:
        if len(of.core.scheduler.lines()) == 2:
            gaps.append(abs(served["short"] - served["long"]))

    player(of).play(arrivals(streams, 60), until_s=60, each=look)
    assert len(gaps) > 100
    assert max(gaps) <= served.gap_bound(16, longest_prompt=300, longest_answer=100)


def test_a_place_goes_to_who_runs_less_and_comes_back() -> None:
    of = Harness(config(max_num_seqs=4, fairness_quantum=0), build(num_pages=200))
    for i in range(6):
        of.submit(f"flood{i}", [3], 30, tenant="flood")
    of.step(3)
    of.submit("other", [3], 4, tenant="other")
    of.step()
    running = [s.request.submit.request for s in of.core.scheduler.runs]
    assert running.count("other") == 1
    assert len(running) == 4
    assert of.core.scheduler.preemptions == 1
    of.run()
    assert len(of.tokens("flood3")) == 30  # the one that yielded lost nothing but time


def test_a_place_is_not_taken_from_who_would_then_run_less() -> None:
    of = Harness(config(max_num_seqs=2), build(num_pages=200))
    of.submit("a", [3], 9, tenant="a")
    of.submit("b", [3], 9, tenant="b")
    of.step()
    of.submit("c", [3], 9, tenant="c")
    of.run()
    assert of.core.scheduler.preemptions == 0


def test_who_weighs_more_has_more_places() -> None:
    of = Harness(config(max_num_seqs=8, fairness_quantum=0), build(num_pages=400))
    for i in range(8):
        of.submit(f"light{i}", [3], 40, tenant="light", weight=1.0)
    of.step()
    for i in range(8):
        of.submit(f"heavy{i}", [3], 40, tenant="heavy", weight=3.0)
    of.step(4)
    running = [s.request.submit.tenant for s in of.core.scheduler.runs]
    assert (running.count("light"), running.count("heavy")) == (2, 6)


def test_a_place_is_not_taken_from_a_higher_priority() -> None:
    of = Harness(config(max_num_seqs=2), build(num_pages=200))
    for i in range(3):
        of.submit(f"paid{i}", [3], 9, tenant="paid", priority=1)
    of.step()
    of.submit("other", [3], 9, tenant="other")
    of.run()
    assert of.core.scheduler.preemptions == 0


def test_the_same_seed_gives_the_same_verdict() -> None:
    scene = Scene(others=2, prompt=20, answer=10, seconds=8)
    first, second = (flood(lambda: player(engine(CPU, 8)), scene) for _ in range(2))
    assert first == second
    assert flood(lambda: player(engine(CPU, 8)), replace(scene, seed=1)) != first


def test_the_player_says_what_became_of_each() -> None:
    wanted = [Arrival(at_s=float(i), tenant="t", prompt=[1, 2], answer=3) for i in range(3)]
    played = player(engine(CPU, 8)).play(wanted)
    assert [one.tokens for one in played.seen] == [3, 3, 3]
    assert all(one.ended and not one.refused for one in played.seen)
    costs = CPU.fixed_s + 2 * CPU.prompt_s
    assert played.seen[2].to_first_token_s == pytest.approx(costs)
