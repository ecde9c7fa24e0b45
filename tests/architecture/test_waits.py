"""Nothing that is cancelled goes on: ``asyncio.wait_for`` of Python 3.11 forgets a cancellation
that comes together with what it waits for, and a loop around it then never ends."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["gateway", "engine", "adapters"])
def test_time_limits_are_timeouts(package: str):
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).rglob("*.py")
        if "asyncio.wait_for(" in path.read_text("utf-8")
    ]
    assert found == []
