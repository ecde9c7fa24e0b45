"""Ids say what they are, and sort by the time they were made."""

import re

from gateway.ids import new_id


def test_an_id_has_its_prefix_and_sorts_by_time():
    ids = [new_id("req") for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in ids)
