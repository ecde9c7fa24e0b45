"""The console script is there, knows its version and explains itself without torch."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from gateway.cli.main import build_parser

ROOT = Path(__file__).parents[2]


def loratorio(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_installed_script_says_its_version():
    try:
        installed = version("loratorio")
    except PackageNotFoundError:
        pytest.skip("loratorio is not installed")
    script = Path(sys.executable).parent / "loratorio"
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, f"loratorio {installed}\n")


def test_help_names_every_command():
    ran = loratorio("--help")
    assert ran.returncode == 0
    named = ["serve", "tenant", "key", "adapter", "engine", "usage", "bench", "plan"]
    assert [command for command in named if command not in ran.stdout] == []


@pytest.mark.parametrize("chosen", ["", "serve", "key", "usage", "apply"])
def test_commands_that_are_not_imported_are_listed_all_the_same(chosen: str):
    assert build_parser(chosen).format_help() == build_parser().format_help()


def test_an_unknown_command_is_one_line_and_status_2():
    ran = loratorio("swerve")
    assert ran.returncode == 2
    assert len(ran.stderr.strip().splitlines()) == 1
