"""Page times of two databases stand side by side, whichever was measured last."""

from bench import cpu_rows, dashboard, report


def told(database: str, p50: float) -> dict[str, object]:
    pages = [{"who": "owner", "page": "/", "p50_ms": p50, "p95_ms": 2 * p50, "times": 3}]
    return {"database": database, "tenants": 1000, "rollup_rows": 10**6, "pages": pages}


def test_each_database_replaces_its_own_rows_and_the_table_has_both(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_rows, "RESULTS", tmp_path / "results" / "cpu")
    monkeypatch.setattr(cpu_rows.read, "__defaults__", (tmp_path / "results" / "cpu",))
    monkeypatch.setattr(cpu_rows.write, "__defaults__", (tmp_path / "results" / "cpu",))
    for database, p50 in (("postgres", 90.0), ("sqlite", 20.0), ("postgres", 30.0)):
        path = dashboard.store(told(database, p50))
    assert path.parent == tmp_path / "results" / "cpu"
    table = report.render(tmp_path / "results")
    line = next(each for each in table.splitlines() if "owner" in each)
    assert line == "| owner: `/` | 20 | 40 | 30 | 60 |"
