"""Numbers as people read them."""

import pytest

from gateway.dashboard.numbers import change, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes(nbytes, text):
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("now", "before", "text"), [(112, 100, "+12%"), (50, 100, "−50%"), (5, 0, ""), (5, -100, "")]
)
def test_a_change_is_told_against_what_there_was(now, before, text):
    """More may have been taken off than was spent: nothing is a share of that."""
    assert change(now, before) == text
