"""The numbers in the documents are those of the result files."""

import json
from pathlib import Path

import pytest

from bench import report

ROW = {
    "bench": "decode", "op": "", "model": "demo", "format": "gptq", "batch": 8, "adapters": 3,
    "metric": "tokens", "value": 1234.5, "unit": "tokens/s", "peer": "x", "peer_value": 400.0,
    "floor": None, "device": "some CPU", "commit": "abc", "date": "2026-12-01",
    "command": "loratorio bench cpu",
}  # fmt: skip


def test_a_row_becomes_a_line_with_its_command_above(tmp_path: Path):
    folder = tmp_path / "some-cpu"
    folder.mkdir()
    (folder / "serving.json").write_text(json.dumps([ROW]))
    tables = report.render(tmp_path)
    assert (
        "| decode demo gptq, batch 8, 3 adapters: tokens | 1,234 | tokens/s | 400 (x) |" in tables
    )
    assert "(commit `abc`, 2026-12-01): `loratorio bench cpu`" in tables


def test_only_what_stands_between_the_markers_is_replaced():
    document = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.insert(document, "new")
    assert once == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    assert report.insert(once, "new") == once


def test_a_document_without_markers_is_refused():
    with pytest.raises(report.MarkersMissing):
        report.insert("no place", "new")


def test_the_documents_hold_the_numbers_of_the_results():
    assert report.main(["--check"]) == 0, "run `make report`"
