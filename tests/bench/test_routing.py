"""The simulation of routing: its traffic, its engines, and what it shows of a small fleet."""

import itertools
import json

from bench.routing.__main__ import main
from bench.routing.engines import ADAPTERS, SimEngine
from bench.routing.policies import POLICIES, Ours
from bench.routing.simulation import Simulation
from bench.routing.steps import StepTimes
from bench.routing.traffic import LONGEST, Traffic

TIMES = StepTimes((1, 64), (0.002, 0.006), 40_000.0, 0.002, 100_000)


def arrivals(count, adapters=500):
    return list(Traffic(adapters, rate=500.0).arrivals(count))


def shown(name, count=1500, engines=20):
    fleet = [SimEngine(f"e{number}", TIMES) for number in range(engines)]
    gateways = [POLICIES[name](), POLICIES[name]()]
    return Simulation(gateways, fleet).run(arrivals(count)), fleet


def test_a_pass_between_two_that_were_measured_is_on_the_line():
    assert TIMES.step_s(1) == 0.002
    assert abs(TIMES.step_s(32) - 0.00397) < 1e-4
    assert TIMES.step_s(128) == 2 * TIMES.step_s(64)


def test_the_recorded_times_are_read():
    times = StepTimes.recorded()
    assert list(times.seconds) == sorted(times.seconds)
    assert 0 < times.cold_s < 1
    assert times.prompt_tokens_per_s > 1000


def test_traffic_follows_zipfs_law_goes_on_and_is_the_same_for_a_seed():
    made = arrivals(2000)
    assert [each.at for each in made] == sorted(each.at for each in made)
    first = sum(each.conversation.adapter == 0 for each in made)
    tenth = sum(each.conversation.adapter == 9 for each in made)
    assert 4 * tenth < first < 20 * max(tenth, 1)
    assert len({each.conversation.number for each in made}) < 0.5 * len(made)
    assert max(each.prompt for each in made) <= LONGEST
    assert all(len(each.wish.tokens) == each.prompt for each in made)
    assert [each.prompt for each in arrivals(100)] == [each.prompt for each in made[:100]]


def test_an_engine_keeps_the_adapters_used_last_and_finds_conversations():
    engine = SimEngine("e", TIMES)
    made = arrivals(1500)
    (warm, found, first, last), again = engine.take(made[0]), engine.take(made[0])
    assert (warm, found) == (False, 0)
    assert (again[0], again[1] > 0) == (True, made[0].prompt > 64)
    assert 0 < first < last
    for each in made:
        engine.take(each)
    engine.tell()
    assert len(engine.resident) == ADAPTERS


def test_ours_finds_more_than_the_others_and_stays_balanced():
    ours, fleet = shown("ours")
    others = [shown(name)[0] for name in POLICIES if name != "ours"]
    assert ours.warm > 1.2 * max(each.warm for each in others)
    assert ours.found_tokens > 2 * max(each.found_tokens for each in others)
    assert sum(engine.running for engine in fleet) > 0


def test_engines_that_are_replaced_get_requests():
    fleet = [SimEngine(f"e{number}", TIMES) for number in range(10)]
    simulation = Simulation([Ours()], fleet)
    made = iter(arrivals(1000))
    simulation.run(itertools.islice(made, 500))
    fresh = [SimEngine(f"n{number}", TIMES) for number in range(5)]
    simulation.replace(5, iter(fresh))
    simulation.run(made)
    assert all(engine.running for engine in fresh)


def test_the_command_says_what_it_found(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("bench.cpu_rows.RESULTS", tmp_path)
    monkeypatch.setattr("bench.cpu_rows.write.__defaults__", (tmp_path,))
    main(["--engines", "20", "--adapters", "200", "--requests", "800", "--gateways", "2"])
    rows = json.loads((tmp_path / "routing.json").read_text())
    assert {row["op"] for row in rows} == set(POLICIES)
    assert "adapter was warm" in capsys.readouterr().out
    moved = next(row for row in rows if row["metric"].startswith("adapters moved"))
    assert 2 < moved["value"] < 30  # one engine of twenty was replaced by another
