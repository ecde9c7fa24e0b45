"""Every kernel has its definition beside it and a test against that definition."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPS = [
    "rms_norm",
    "rope",
    "silu_mul",
    "kv_write",
    "qkv_heads",
    "paged_decode",
    "ragged_prefill",
    "matmul_w4a16",
    "matmul_w8a16",
    "lora_shrink",
    "lora_expand",
    "sample",
    "mask_tokens",
    "peer_sum",
]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("op", OPS)
def test_an_op_is_one_file_with_its_function_and_its_reference(op: str):
    assert {op, f"{op}_reference"} <= functions(ROOT / "kernels" / f"{op}.py")


@pytest.mark.parametrize("op", OPS)
def test_an_op_is_tested_against_its_reference(op: str):
    tests = [path.read_text("utf-8") for path in (ROOT / "tests" / "kernels").glob("test_*.py")]
    assert any(f"{op}_reference" in text for text in tests)


def test_no_op_is_missing_from_this_list():
    found = {
        path.stem
        for path in (ROOT / "kernels").glob("*.py")
        if f"{path.stem}_reference" in functions(path)
    }
    assert found <= set(OPS)
