"""What is written in the project speaks of the project alone."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THIS = Path(__file__).relative_to(ROOT).as_posix()
BINARY = {".safetensors", ".png", ".ico", ".gguf", ".woff2"}

# A path of one machine, a word about how the text came to be, a loose end.
BANNED = {
    "a path of one machine": re.compile(r"(?<![\w.])/(work|tmp/w|opt/(wheels|pypi))/"),
    "how the text came to be": re.compile(r"\b(the brief|as an AI|sub-?agent|claude)\b", re.I),
    "a loose end": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!.*https?://)"),
    "a package index": re.compile(r"(pypi\.org|files\.pythonhosted|index-url)"),
}


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.decode().split("\0") if name and name != THIS]


def test_no_tracked_file_says_what_does_not_belong_in_it():
    found = []
    for name in tracked():
        path = ROOT / name
        if path.suffix in BINARY or not path.is_file():
            continue
        text = path.read_text("utf-8", errors="replace")
        for why, pattern in BANNED.items():
            if match := pattern.search(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{name}:{line}: {match.group(0)!r} is {why}")
    assert found == []
