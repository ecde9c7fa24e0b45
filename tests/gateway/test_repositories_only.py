"""Queries are written in repository files, so that a tenant's predicate cannot be forgotten."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATEMENTS = {"select", "insert", "update", "delete", "text"}
ALLOWED = {
    ROOT / "gateway/db.py",  # TenantRepository adds the predicate
    ROOT / "gateway/backup/databases.py",  # of whole databases, which may be of an older schema
}


def statements(source: str) -> list[str]:
    """Calls of SQLAlchemy's statement builders, by whatever module name."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy")
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in STATEMENTS & imported:
            found.append(called.id)
        if isinstance(called, ast.Attribute) and called.attr in STATEMENTS:
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if owner in imported | {"sqlalchemy", "sa"}:
                found.append(f"{owner}.{called.attr}")
    return found


def test_statements_appear_in_repository_files_only():
    offenders = {
        str(path.relative_to(ROOT)): found
        for path in (ROOT / "gateway").rglob("*.py")
        if not path.name.endswith(("repository.py", "models.py")) and path not in ALLOWED
        if (found := statements(path.read_text()))
    }
    assert offenders == {}


@pytest.mark.parametrize(
    "source",
    [
        "from sqlalchemy import select\nselect(x)",
        "import sqlalchemy as sa\nsa.delete(x)",
        "from sqlalchemy.dialects import sqlite\nsqlite.insert(x)",
        "from sqlalchemy import text\ntext('SELECT 1')",
    ],
)
def test_the_check_sees_every_way_to_write_one(source):
    assert len(statements(source)) == 1
