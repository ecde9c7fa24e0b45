"""Dependencies point one way, and what must stay light never loads torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "triton", "transformers", "peft")

# Parts of the engine that decide and talk but never compute.
BRAIN = [
    "engine.protocol",
    "engine.transport",
    "engine.client",
    "engine.step",
    "engine.config",
    "engine.pages",
    "engine.sequence",
    "engine.scheduler",
    "engine.residency",
    "engine.counts",
    "engine.grammars",
    "engine.masking",
    "engine.metrics",
    "engine.core",
    "engine.server",
]
# Commands that answer on a machine without a tensor library.
LIGHT_TOOLS = [
    "engine.cli",
    "engine.plan",
    "engine.page_size",
    "engine.stored_weights",
    "engine.bench.cli",
    "engine.bench.serve",
    "engine.bench.waste",
]
LIGHT_ADAPTERS = ["adapters.base_spec", "adapters.manifest", "adapters.store", "adapters.validate"]

IMPORT_AND_REPORT = """
import importlib, json, pkgutil, sys
wanted = json.loads(sys.argv[1])
heavy = json.loads(sys.argv[2])
blame = {}
for name in wanted:
    if name.endswith(".*"):
        package = importlib.import_module(name[:-2])
        found = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
        names = [m for m in found if not m.endswith("__main__")]
    else:
        names = [name]
    for each in names:
        importlib.import_module(each)
        for package in heavy:
            if package in sys.modules:
                blame.setdefault(package, each)
print(json.dumps(blame))
"""


def loaded_by(modules: list[str]) -> dict[str, str]:
    """Heavy package -> the first of our modules whose import brought it in."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_REPORT, json.dumps(modules), json.dumps(HEAVY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    blame: dict[str, str] = json.loads(ran.stdout)
    return blame


def test_the_import_contracts_hold():
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_module_of_the_gateway_loads_torch():
    assert loaded_by(["gateway.*"]) == {}


@pytest.mark.parametrize("module", [*BRAIN, *LIGHT_TOOLS, *LIGHT_ADAPTERS])
def test_what_decides_and_talks_never_loads_torch(module: str):
    assert loaded_by([module]) == {}
