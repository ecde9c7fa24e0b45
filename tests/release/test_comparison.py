"""Each row of the comparison names what shows it; that it can be run, ``test_mentions`` holds."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/comparison.md").read_text("utf-8")


def test_rows_name_what_shows_them():
    rows = [
        line for line in PAGE.splitlines() if line.startswith("| ") and "what shows it" not in line
    ]
    assert len(rows) > 20
    assert all(re.search(r"\| (`[^`]+`|\[.+\]\(.+\)) \|$", row) for row in rows), rows
