"""The release is said in one place, and what is written about it agrees."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
HEADING = re.compile(r"^## (\S+)(?: – (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def test_the_changelog_begins_with_this_release():
    entries = HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    assert entries[0][0] == VERSION
    assert all(date for _, date in entries)


def test_no_program_says_the_version_by_itself():
    """It is the installed package's; images are tagged with it."""
    ran = subprocess.run(
        ["git", "grep", "-lF", f'"{VERSION}"', "--", "gateway", "engine", "adapters", "kernels"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout.split() == []
    base = (ROOT / "deploy" / "kubernetes" / "base" / "kustomization.yaml").read_text()
    assert set(re.findall(r"newTag: (\S+?)\}", base)) == {VERSION}


def test_the_protocol_that_the_changelog_names_is_spoken():
    from engine.protocol import VERSION as protocol

    latest = (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2].partition("\n## ")[0]
    assert f"protocol {protocol}" in latest
