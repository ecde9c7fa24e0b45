"""Routing: where the conversation was, warm, by rendezvous, least loaded; the popular spreads."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.router import RELAXED, SMALL, Router, Wish
from gateway.fleet.winners import Winners


@dataclass(eq=False)
class FakeMember:
    name: str
    load: float = 0.0
    resident: frozenset[str] = field(default_factory=frozenset)
    usable: bool = True
    share: float = 0.0


def router_of(*members):
    router = Router()
    for member in members:
        router.join(member)
    router.refresh()
    return router


def fleet_of(count, **facts):
    return [FakeMember(f"tcp:10.0.0.{i}:8471", **facts) for i in range(count)]


WARM = frozenset({"d1"})


def test_prefers_an_engine_that_already_holds_the_adapter():
    cold, warm = FakeMember("a"), FakeMember("b", load=0.15, resident=WARM)
    assert router_of(cold, warm).choose(Wish("d1")) is warm


def test_spills_to_a_colder_engine_when_the_warm_one_is_saturated():
    cold, warm = FakeMember("a", load=0.15), FakeMember("b", load=0.97, resident=WARM)
    assert router_of(cold, warm).choose(Wish("d1")) is cold


def test_takes_the_least_loaded_of_several_warm_ones():
    busy, idle = FakeMember("a", 0.15, WARM), FakeMember("b", 0.1, WARM)
    assert router_of(busy, idle).choose(Wish("d1")) is idle


def test_the_base_goes_to_the_least_loaded():
    busy, idle = FakeMember("a", load=0.5, resident=WARM), FakeMember("b", load=0.1)
    assert router_of(busy, idle).choose(Wish()) is idle


def test_when_all_are_saturated_the_least_loaded_takes_it():
    full, fuller = FakeMember("a", load=0.95), FakeMember("b", load=0.99, resident=WARM)
    assert router_of(full, fuller).choose(Wish("d1")) is full


def test_who_was_tried_or_cannot_be_used_is_not_chosen():
    gone, tried, left = FakeMember("a", resident=WARM), FakeMember("b"), FakeMember("c", 0.9)
    router = router_of(gone, tried, left)
    gone.usable = False
    assert router.choose(Wish("d1"), tried=[tried]) is left
    assert router.choose(Wish("d1"), tried=[tried, left]) is None
    assert router_of().choose(Wish("d1")) is None


@given(st.integers(2, 40), st.data())
def test_an_engine_that_leaves_moves_only_its_own_adapters(count, data):
    members = fleet_of(count)
    router, digests = router_of(*members), [str(number) for number in range(60)]
    before = {digest: router.choose(Wish(digest)) for digest in digests}
    leaver = data.draw(st.sampled_from(members))
    router.leave(leaver)
    for digest in digests:
        after = router.choose(Wish(digest))
        assert after is before[digest] or before[digest] is leaver
    router.join(leaver)
    assert {digest: router.choose(Wish(digest)) for digest in digests} == before


def test_every_gateway_chooses_the_same_engine():
    members = fleet_of(30)
    one, other = router_of(*members), router_of(*members[::-1])
    for digest in map(str, range(100)):
        assert one.choose(Wish(digest)) is other.choose(Wish(digest))


def test_adapters_spread_evenly_over_the_engines():
    members = fleet_of(50)
    router = router_of(*members)
    counts = Counter(router.choose(Wish(str(number))).name for number in range(10_000))
    assert len(counts) == 50
    assert max(counts.values()) < 1.4 * 200


def test_a_popular_adapter_spreads_and_no_engine_is_far_above_the_mean():
    members = fleet_of(40, share=1 / 256)
    router = router_of(*members)
    chosen = Counter()
    for _ in range(40 * 128):  # half of what all can take
        member = router.choose(Wish("popular"))
        chosen[member.name] += 1
        member.load += member.share
        member.resident |= {"popular"}
        router.refresh()
    assert len(chosen) >= 40 / 1.25
    assert max(member.load for member in members) <= 0.5 * 1.25 + 1 / 256


def test_below_a_fifth_of_its_room_an_engine_keeps_its_adapter_to_itself():
    members = fleet_of(5, share=1 / 256)
    router = router_of(*members)
    first = router.choose(Wish("d1"))
    for _ in range(int(RELAXED * 256) - 1):
        assert router.choose(Wish("d1")) is first
        first.load += first.share


def conversation(seed, pages):
    return [(seed * 7919 + i) % 1000 for i in range(64 * pages + 5)]


def test_a_conversation_goes_back_to_where_it_was():
    members = fleet_of(8, resident=WARM)
    router = router_of(*members)
    for seed in range(20):
        turn = conversation(seed, 3)
        first = router.choose(Wish("d1", "acme", turn))
        first.load = 0.15  # others are idler
        assert router.choose(Wish("d1", "acme", [*turn, *range(200)])) is first
        first.load = 0.0


def test_of_two_conversations_that_begin_alike_each_goes_back_to_its_own():
    one, other = fleet_of(2, resident=WARM)
    router = router_of(one, other)
    begin = conversation(1, 2)
    mine, theirs = begin + conversation(2, 4), begin + conversation(3, 4)
    other.load = 0.15
    assert router.choose(Wish("d1", "acme", mine)) is one
    one.load, other.load = 0.9, 0.0
    assert router.choose(Wish("d1", "acme", theirs)) is other
    one.load = other.load = 0.1
    assert router.choose(Wish("d1", "acme", mine)) is one
    assert router.choose(Wish("d1", "acme", theirs)) is other


def test_a_conversation_does_not_hold_on_to_a_busy_or_cold_engine():
    members = fleet_of(3)
    router, turn = router_of(*members), conversation(1, 2)
    first = router.choose(Wish(None, "acme", turn))
    first.load = 0.95
    assert router.choose(Wish(None, "acme", turn)) is not first
    cold, warm = FakeMember("a"), FakeMember("b", resident=WARM)
    router = router_of(cold, warm)
    router.choose(Wish("d1", "acme", turn))
    warm.resident, cold.resident = frozenset(), WARM
    assert router.choose(Wish("d1", "acme", turn)) is cold


def test_one_tenants_conversations_say_nothing_about_anothers():
    members = fleet_of(30)
    router, turn = router_of(*members), conversation(1, 2)
    homes = {router.choose(Wish(None, f"tenant {i}", turn)).name for i in range(40)}
    assert len(homes) > 10


def test_a_base_conversation_meets_the_same_engine_at_every_gateway():
    members = fleet_of(30)
    for seed in range(20):
        wish = Wish(None, "acme", conversation(seed, 2))
        assert router_of(*members).choose(wish) is router_of(*members[::-1]).choose(wish)


def test_a_large_fleet_is_looked_at_between_decisions():
    members = fleet_of(SMALL + 20)
    router = router_of(*members)
    members[3].resident = WARM
    router.refresh()
    assert router.choose(Wish("d1")) is members[3]
    members[3].load = 0.99
    router.refresh()
    assert router.choose(Wish("d1")) is not members[3]
    members[3].load, members[5].resident = 0.0, WARM
    router.refresh()
    assert router.choose(Wish("d1")) in (members[3], members[5])


def test_winners_are_the_same_however_engines_came_and_went():
    seats = [object() for _ in range(6)]
    keys = np.arange(1, 7, dtype=np.uint32) * np.uint32(0x01234567)
    straight, around = Winners(), Winners()
    for seat, key in zip(seats[:5], keys, strict=False):
        straight.join(seat, int(key))
    for place in (5, 3, 0, 4, 2, 1):
        around.join(seats[place], int(keys[place]))
    around.leave(seats[5], seats[:5], keys[:5])
    assert around.seats == straight.seats
    assert set(around.seats) == set(seats[:5])
    for seat in seats[:5]:
        straight.leave(seat, [], keys[:0])
    assert set(straight.seats) == {None}
