"""What a comparison names as shown can be run."""

import re
from pathlib import Path

import pytest

from engine.bench.cli import ALONE, OTHERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/comparison.md").read_text("utf-8")
COMMANDS = sorted(set(re.findall(r"\| `([^`]+)` \|$", PAGE, re.MULTILINE)))


def test_rows_name_what_shows_them():
    rows = [
        line for line in PAGE.splitlines() if line.startswith("| ") and "what shows it" not in line
    ]
    assert len(rows) > 20
    assert all(re.search(r"\| (`[^`]+`|\[.+\]\(.+\)) \|$", row) for row in rows), rows


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_there(command):
    program, *arguments = command.split()
    match program, *arguments:
        case "pytest", path:
            assert (ROOT / path).exists()
        case "make", target:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text("utf-8")
        case "loratorio", "bench", bench:
            assert bench in (*ALONE, *OTHERS)
        case "python", "-m", module:
            assert (ROOT / module.replace(".", "/")).is_dir()
        case _:
            assert command == "loratorio serve"
