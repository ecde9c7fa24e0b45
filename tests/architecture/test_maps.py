"""The maps of the two large packages, in their docstrings, name modules that there are."""

import re
from pathlib import Path

import pytest

import engine
import gateway

ROOT = Path(__file__).parents[2]
COMPOUND = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")  # no word of the prose is one
QUOTED = re.compile(r"``(\w+)``")


@pytest.mark.parametrize("package", [engine, gateway], ids=lambda package: package.__name__)
def test_what_a_map_names_is_there(package):
    text, folder = package.__doc__ or "", ROOT / package.__name__
    named = {*COMPOUND.findall(text), *QUOTED.findall(text)}
    assert len(named) > 10
    there = {path.stem for path in folder.iterdir()}
    assert not named - there
