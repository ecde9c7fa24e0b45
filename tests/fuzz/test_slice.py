"""A few seconds of ``make fuzz`` on every run, with inputs that hypothesis can make smaller."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.run import Target, fuzz
from tests.fuzz.targets import targets

NAMES = ("keys", "config", "safetensors header", "multipart", "whole adapter")
FEW = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def target_of(name: str, scratch: Path) -> Target:
    (found,) = [target for target in targets(scratch) if target.name == name]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_accepted_or_refused(tmp_path, name):
    target = target_of(name, tmp_path)

    @FEW
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        assert target.accepts(data) in (True, False)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_nearly_sound_is_accepted_or_refused(tmp_path, name):
    target = target_of(name, tmp_path)

    @FEW
    @given(st.integers(0, 2**64))
    def check(seed: int) -> None:
        assert target.accepts(target.make(Random(seed))) in (True, False)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_both_answers_occur(tmp_path, name):
    """Else the inputs would be too far from what the parser reads."""
    found = fuzz(target_of(name, tmp_path), 150, seed=7, keep=tmp_path)
    assert found.crashes == []
    assert found.accepted
    assert found.refused


def test_a_crash_is_kept_with_its_input(tmp_path):
    def explode(data: bytes) -> bool:
        raise KeyError("oh")

    found = fuzz(Target("x", 1.0, lambda random: b"abc", explode), 2, 1, keep=tmp_path / "kept")
    assert [path.read_bytes() for path in found.crashes] == [b"abc", b"abc"]
    assert "KeyError" in found.crashes[0].with_suffix(".txt").read_text()
