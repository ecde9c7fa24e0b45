"""The console script is there, knows its version and explains itself without torch."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "command", ["serve", "tenant", "key", "adapter", "engine", "usage", "bench", "plan"]
)
def test_help_names_every_command(command: str):
    ran = loratorio("--help")
    assert ran.returncode == 0
    assert command in ran.stdout


def test_an_unknown_command_is_one_line_and_status_2():
    ran = loratorio("swerve")
    assert ran.returncode == 2
    assert len(ran.stderr.strip().splitlines()) == 1
