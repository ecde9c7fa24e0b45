"""The record of token counts survives restarts, torn writes and its own growth."""

from pathlib import Path

import pytest

from engine.counts import CountRecord
from engine.protocol import Counts


def counts(name: str, completion: int = 4, *, finished: bool = True) -> Counts:
    return Counts(name, "boot-1", 3, completion, finished)


def test_the_latest_word_about_a_request_counts() -> None:
    record = CountRecord(None)
    record.write(counts("r1", 0, finished=False))
    record.write(counts("r1", 9))
    assert record.read("r1") == counts("r1", 9)
    assert record.read("never") == Counts("never")


def test_what_was_flushed_is_known_after_a_crash(tmp_path: Path) -> None:
    record = CountRecord(tmp_path / "engine")
    record.write(counts("r1", 0, finished=False))
    record.write(counts("r2"))
    record.flush()
    after = CountRecord(tmp_path / "engine")  # the first was never closed
    assert after.read("r1") == counts("r1", 0, finished=False)
    assert after.read("r2") == counts("r2")


def test_a_line_torn_by_a_crash_spoils_neither_those_before_nor_those_after(
    tmp_path: Path,
) -> None:
    record = CountRecord(tmp_path)
    record.write(counts("before"))
    record.close()
    path = tmp_path / "counts.jsonl"
    path.write_bytes(path.read_bytes() + b'["Counts","torn","bo')
    again = CountRecord(tmp_path)
    again.write(counts("after"))
    again.close()
    last = CountRecord(tmp_path)
    assert [last.read(name).completion_tokens for name in ("before", "torn", "after")] == [4, 0, 4]


def test_growth_is_bounded_by_two_generations(tmp_path: Path) -> None:
    record = CountRecord(tmp_path, kept=10)
    for i in range(35):
        record.write(counts(f"r{i}"))
        record.flush()
    record.close()
    lines = sum(len(path.read_bytes().split()) for path in tmp_path.iterdir())
    assert lines <= 20
    for kept in (record, CountRecord(tmp_path, kept=10)):
        assert kept.read("r19") == Counts("r19")
        assert all(kept.read(f"r{i}").finished for i in range(20, 35))


def test_pages_go_over_both_generations_and_name_each_request_once(tmp_path: Path) -> None:
    record = CountRecord(tmp_path, kept=10)
    for i in range(15):
        record.write(counts(f"r{i:02d}"))
    record.write(counts("r03"))  # in the older generation too
    pages = [record.page(start, 4) for start in range(0, 24, 4)]
    names = [each.request for page in pages for each in page]
    assert sorted(names) == [f"r{i:02d}" for i in range(15)]
    assert record.page(15, 4) == []
    record.close()


def test_a_disk_that_fills_up_does_not_stop_serving(caplog: pytest.LogCaptureFixture) -> None:
    record = CountRecord(None)
    record._file = Path("/dev/full").open("w")  # noqa: SIM115
    record.write(counts("r1"))
    record.flush()
    record.write(counts("r2"))
    record.flush()
    record.close()
    assert record.read("r1") == counts("r1")
    assert "no longer recorded" in caplog.text
