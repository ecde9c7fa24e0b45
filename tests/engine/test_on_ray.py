"""How many engines a cluster should have, and how they come and go. Without Ray."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from engine.on_ray.engines import Engines, NoRoom
from engine.on_ray.scaling import FILLED, Busy, Scaling
from tests.fakes.clock import FakeClock, until
from tests.fakes.engine import FakeEngine


def idle(count):
    return [Busy(0, 10)] * count


def test_there_are_never_fewer_than_the_least_nor_more_than_the_most():
    scaling = Scaling(2, 4, patience_s=10)
    assert scaling.wanted([], 0, 0.0) == 2
    assert scaling.wanted([Busy(1000, 10)] * 2, 0, 1.0) == 4
    assert scaling.wanted([Busy(1000, 10)] * 5, 0, 2.0) == 4
    for now in range(100):
        assert scaling.wanted(idle(2), 0, 3.0 + now) == 2


def test_a_queue_brings_as_many_as_it_needs_at_once():
    scaling = Scaling(1, 100)
    assert scaling.wanted([Busy(24, 10)], 0, 0.0) == 24 / 10 / FILLED == 4
    assert scaling.wanted([Busy(24, 10)], 3, 1.0) == 4  # they are coming: no more


def test_one_fewer_only_after_patience_in_which_fewer_would_always_have_done():
    scaling = Scaling(1, 9, patience_s=10)
    assert [scaling.wanted(idle(3), 0, float(now)) for now in range(10)] == [3] * 10
    assert scaling.wanted([Busy(6, 10)] * 3, 0, 9.5) == 3  # busy once: patience begins anew
    assert scaling.wanted(idle(3), 0, 19.0) == 3
    assert scaling.wanted(idle(3), 0, 19.5) == 2
    assert scaling.wanted(idle(2), 0, 20.0) == 2  # one at a time
    assert scaling.wanted(idle(2), 0, 29.5) == 1


@dataclass(eq=False)
class Somewhere:
    engine: FakeEngine
    alive: bool = True
    drained: bool = False
    removed: bool = False

    @property
    def address(self):
        return self.engine.address

    def drain(self):
        self.drained, self.alive = True, False

    def remove(self):
        self.removed = True


@dataclass
class Cluster:
    free: list[FakeEngine]
    placed: list[Somewhere] = field(default_factory=list)

    def start(self):
        if not self.free:
            raise NoRoom("all is taken")
        self.placed.append(Somewhere(self.free.pop()))
        return self.placed[-1]


async def test_engines_are_started_replaced_added_and_drained(tmp_path):
    fakes = [FakeEngine(f"unix:{tmp_path}/{number}.sock", credits=10) for number in range(4)]
    for fake in fakes:
        fake.welcome = msgspec.structs.replace(fake.welcome, seats=10)
        await fake.__aenter__()
    clock, cluster = FakeClock(), Cluster(list(fakes))
    engines = Engines(cluster.start, Scaling(1, 3, patience_s=60), clock=clock)

    async def looked(condition):
        async with asyncio.timeout(5):
            while not condition():
                await engines.look()
                await asyncio.sleep(0.01)

    await looked(lambda: [each.busy for each in engines.kept] == [Busy(0, 10)])
    cluster.placed[0].alive = False  # its node is gone
    await looked(lambda: cluster.placed[0].removed and len(engines.kept) == 1)
    assert len(cluster.placed) == 2
    await looked(lambda: engines.kept[0].busy is not None)
    cluster.placed[1].engine.push_load(waiting=12)
    await until(lambda: engines.kept[0].busy == Busy(12, 10))
    await looked(lambda: len(engines.kept) == 2)  # 12 in 10 seats
    cluster.placed[1].engine.push_load(waiting=100)
    await until(lambda: engines.kept[0].busy == Busy(100, 10))
    await looked(lambda: len(engines.kept) == 3)
    assert cluster.free == []
    cluster.placed[1].engine.push_load(waiting=0)
    await until(lambda: engines.kept[0].busy == Busy(0, 10))
    for _ in range(2):
        await engines.look()
        clock.advance(61)
        await engines.look()
    await looked(lambda: len(engines.kept) == 1)
    assert sum(each.drained for each in cluster.placed) == 2
    run = asyncio.create_task(engines.run())
    await asyncio.sleep(0.05)
    run.cancel()
    await asyncio.wait([run])
    assert engines.kept == []
    assert all(each.removed for each in cluster.placed)
    for fake in fakes:
        await fake.__aexit__(None, None, None)
