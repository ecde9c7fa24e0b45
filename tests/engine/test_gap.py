"""Tenants who always wait are served alike, whatever they ask for: the bound of the gap holds."""

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.bench.simulated import CPU, GPU, Costs, SimulatedEngine
from engine.config import EngineConfig
from engine.core import Heard
from engine.protocol import Sampling, Submit

PASSES = 100
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Habit:
    """What one tenant asks for again and again."""

    prompt: int
    answer: int
    weight: float


habits = st.builds(
    Habit,
    prompt=st.sampled_from([1, 7, 40, 150, 300]),
    answer=st.sampled_from([1, 2, 10, 60]),
    weight=st.sampled_from([1.0, 1.0, 2.0, 5.0]),
)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tenants=st.lists(habits, min_size=2, max_size=4),
    seats=st.sampled_from([2, 5, 16]),
    quantum=st.sampled_from([0, 50, 500]),
    costs=st.sampled_from([CPU, GPU]),
)
def test_the_gap_of_those_who_always_wait_is_bounded(
    tenants: list[Habit], seats: int, quantum: int, costs: Costs
) -> None:
    config = EngineConfig(
        model="simulated", max_num_seqs=seats, max_waiting=10_000, fairness_quantum=quantum,
        max_num_batched_tokens=256, enable_prefix_caching=False,
    )  # fmt: skip
    of = SimulatedEngine(config, costs, pages=400, max_step_s=0.025 if costs is GPU else None)
    core, number = of.core, 0
    fairness, names = core.scheduler.fairness, [f"t{i}" for i in range(len(tenants))]
    bound = fairness.gap_bound(
        seats,
        longest_prompt=max(habit.prompt for habit in tenants),
        longest_answer=max(habit.answer for habit in tenants),
    )
    for _ in range(PASSES):
        lines = core.scheduler.lines()
        for name, habit in zip(names, tenants, strict=True):
            for _ in range(2 * seats - len(lines.get(name, ()))):
                number += 1
                submit = Submit(f"r{number}", name, [5] * habit.prompt, habit.answer,
                                sampling=GREEDY, weight=habit.weight, ignore_eos=True)  # fmt: skip
                core.inbox.put(Heard(0, submit), force=True)
        core.step()
        core.outbox.take()
        served = [fairness[name] for name in names]
        assert max(served) - min(served) <= bound, served
