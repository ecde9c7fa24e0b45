"""Our package names live beside packages that look for the same names."""

import subprocess
import sys
from pathlib import Path

import pytest

import kernels

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_transformers_does_not_take_our_kernels_for_its_own():
    code = "from transformers.utils import is_kernels_available; print(is_kernels_available())"
    assert run(code) == "False"
    assert not hasattr(kernels, "__version__")  # transformers would parse it


def test_transformers_and_peft_import_beside_our_packages():
    code = (
        "import kernels, adapters, peft; from transformers import LlamaForCausalLM; "
        "print(kernels.__file__, adapters.__file__)"
    )
    assert str(ROOT) in run(code)
