"""Numbers as people read them."""

import pytest

from gateway.dashboard.numbers import size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes(nbytes, text):
    assert size(nbytes) == text
