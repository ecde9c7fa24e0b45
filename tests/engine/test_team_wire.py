"""Orders arrive as they were given; a side that ends is noticed, and so is a pass that hangs."""

import gc
import socket
from collections import deque

import numpy as np
import pytest
import torch

from adapters.keys import HEAD
from adapters.pack import Factor, PackedAdapter, Table
from engine.errors import AdapterUnusable, MemberLost
from engine.team import lead
from engine.team.lead import Watched
from engine.team.orders import AnyOrder, Compute, Decode, Failed, Packed, Swap, packed, unpacked
from engine.team.supply import Keep, Kept, Supply, receive
from engine.team.wire import Wire


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_orders_arrive_as_they_were_given(ends):
    sender, receiver = Wire(ends[0], Failed), Wire(ends[1], AnyOrder)
    table = np.arange(60, dtype=np.int32).reshape(6, 10)
    sender.send(Decode(8, True, Packed.of(table[:4, :3])))
    order = receiver.receive()
    assert (order.rows, order.adapted) == (8, True)
    assert order.table.array().tolist() == table[:4, :3].tolist()
    assert order.table.array().flags.writeable
    arrays = {"tokens": np.array([3, 4]), "decode pages": np.zeros((0, 5), dtype=np.int32)}
    sender.send(Compute(packed(arrays), ((0, 2, -1),), 2, False, ((0, 1), (1, 2))))
    order = receiver.receive()
    found = unpacked(order.arrays)
    assert {name: (a.dtype, a.shape) for name, a in found.items()} == {
        name: (a.dtype, a.shape) for name, a in arrays.items()
    }
    assert (order.runs, order.plain, order.heads) == (((0, 2, -1),), False, ((0, 1), (1, 2)))


def test_a_side_that_ends_is_noticed_by_who_reads_and_by_who_writes(ends):
    here, there = Wire(ends[0], AnyOrder), Wire(ends[1], Failed)
    there.shut()
    with pytest.raises(MemberLost, match="closed its end"):
        here.receive()
    with pytest.raises(MemberLost, match="cannot be told"):
        here.send(Swap(True, (1,), (2,), False))


def test_what_nobody_understands_is_refused(ends):
    sender, receiver = Wire(ends[0], Failed), Wire(ends[1], AnyOrder)
    sender.send(Failed("x"))
    with pytest.raises(MemberLost, match="nobody understands"):
        receiver.receive()


def adapter():
    plain = Factor(torch.randn(2, 4).bfloat16(), torch.randn(3, 2).bfloat16())
    dora = Factor(torch.zeros(0, 4), torch.zeros(3, 0), magnitude=torch.ones(3))
    tables = {HEAD: Table(rows=torch.randn(2, 4), ids=(5, 1))}
    return PackedAdapter("d", 2, {(0, "q_proj"): plain, (1, "o_proj"): dora}, tables)


def test_an_adapter_is_kept_until_nobody_holds_it(ends):
    supply, theirs = Supply([Wire(ends[0], Kept)]), Wire(ends[1], Keep)
    theirs.send(Kept())  # said before it is asked: one thread plays both
    elsewhere = supply.send(given := adapter())
    key, found = receive(theirs)
    assert key == elsewhere.key
    assert (found.digest, found.rank, found.tables[HEAD].ids) == ("d", 2, (5, 1))
    assert torch.equal(found.tables[HEAD].rows, given.tables[HEAD].rows)
    for site, factor in given.factors.items():
        assert torch.equal(found.factors[site].a, factor.a)
        assert torch.equal(found.factors[site].b, factor.b)
    assert found.factors[1, "o_proj"].magnitude is not None
    assert found.factors[0, "q_proj"].magnitude is None
    assert supply.dropped == deque()
    del elsewhere
    gc.collect()
    assert supply.dropped == deque([key])


def test_an_adapter_that_a_follower_cannot_lay_out_is_refused(ends):
    supply, theirs = Supply([Wire(ends[0], Kept)]), Wire(ends[1], Keep)
    theirs.send(Kept("a block exceeds a page"))
    with pytest.raises(AdapterUnusable, match="exceeds a page"):
        supply.send(adapter())


class Never:
    """An event that is not reached."""

    def query(self):
        return False

    def synchronize(self):
        raise AssertionError("nobody waits without looking at the team")


class Team:
    def __init__(self, lost=None):
        self.lost = lost

    def check(self):
        if self.lost:
            raise self.lost


def test_a_pass_is_waited_for_no_longer_than_the_team_lives(monkeypatch):
    with pytest.raises(MemberLost, match="signal 9"):
        Watched(Never(), Team(MemberLost("signal 9"))).synchronize()
    monkeypatch.setattr(lead, "PASS_S", 0.05)
    with pytest.raises(MemberLost, match="not over on all members"):
        Watched(Never(), Team()).synchronize()
