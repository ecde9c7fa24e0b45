"""A LiteLLM proxy's keys, teams and prices become tenants that `apply` takes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.main import main

HERE = Path(__file__).parent / "litellm"
ALL = [
    str(HERE / "config.yaml"),
    *(word for name in ("teams", "keys", "users")
      for word in (f"--{name}", str(HERE / f"{name}.json"))),
]  # fmt: skip


@pytest.fixture
def imported(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    def run(*words: str) -> tuple[Any, str]:
        assert main(["import", "litellm", *words]) == 0
        out, err = capsys.readouterr()
        return yaml.safe_load(out), err

    return run


def test_prices_are_those_of_ones_own_models_to_the_digit(imported):
    tenants, said = imported(str(HERE / "config.yaml"))
    assert tenants["prices"] == [
        {"model": "llama-3.1-8b", "input": 0.15, "cached_input": 0.15, "output": 0.6},
        {"model": "sql", "input": 0.2, "cached_input": 0.05, "output": 0.8},
    ]
    assert "'gpt-4o' is another provider's" in said
    assert "max_budget of the proxy" in said
    assert "sk-master-secret" not in said


def test_teams_and_keys_keep_their_limits(imported):
    tenants, said = imported(*ALL)
    science = tenants["organisations"]["acme"]["projects"]["Data-Science"]
    assert science["rates"] == {
        "requests_per_minute": 600, "tokens_per_minute": 100000, "concurrency": 16,
    }  # fmt: skip
    assert science["budgets"] == [{"period": "month", "usd": 250.25}]
    assert science["people"] == {"ann@acme.example": "admin"}
    assert tenants["organisations"]["acme"]["people"] == {
        "ann@acme.example": {"name": "Ann Smith", "role": "viewer"}
    }
    key = science["keys"]["notebook"]
    assert key["rates"] == {"requests_per_minute": 60}
    assert key["budgets"] == [{"period": "month", "usd": 3.5}]
    assert key["allow_models"] == ["sql"]
    assert key["expires"] == "2036-01-31T00:00:00+00:00"
    projects = tenants["organisations"]["default"]["projects"]
    assert projects["web"]["budgets"] == [{"period": "day", "usd": 5}]
    assert projects["web"]["models"] == {
        "sql": {
            "rates": {"requests_per_minute": 30, "tokens_per_minute": 9000},
            "budgets": [{"period": "day", "usd": 0.5}],
        }
    }
    assert projects["web"]["keys"] == {
        "sk-...Ab1c": {"endpoints": ["/v1/chat/completions", "/v1/models"]}
    }
    assert projects["default"]["keys"] == {"lonely": {}}
    for told in (
        "'Data-Science' here", "key old has expired", "team gone is blocked", "$10 has no period",
        "$9 each 7d", "soft_budget", "calendar month", "u-2 has no address", "gpt-4o: not served",
        "by their hashes alone", "periods begin anew", "list of models (llama-3.1-8b, sql)",
    ):  # fmt: skip
        assert told in said, told
    assert "of-the-gone" not in json.dumps(tenants)


def test_an_amount_finer_than_ours_is_rounded_down_and_said(tmp_path: Path, imported):
    file = tmp_path / "teams.json"
    file.write_text(
        '[{"team_id": "t", "max_budget": 0.30000000000000004, "budget_duration": "1d"}]'
    )
    tenants, said = imported("--teams", str(file), "--organisation", "acme")
    assert tenants["organisations"]["acme"]["projects"]["t"]["budgets"][0]["usd"] == 0.3
    assert "becomes $0.3" in said


def test_apply_brings_about_what_was_imported_and_finds_nothing_the_second_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, data = tmp_path / "tenants.yaml", ["--data-dir", str(tmp_path / "data")]
    assert main(["import", "litellm", *ALL, "-o", str(file)]) == 0
    assert main(["apply", "-f", str(file), *data, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(bool(row["key"]) for row in rows) == 3  # shown once
    assert main(["apply", "-f", str(file), *data]) == 0
    assert capsys.readouterr().out.strip() == "Nothing to change."


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("teams", "[{", "Expecting"),
        ("teams", '{"teams": 3}', "a list of teams"),
        ("keys", '{"keys": ["0a1b"], "total_pages": 1}', "return_full_object"),
        ("keys", '{"keys": [], "total_pages": 3}', "page 1 of 3"),
        ("teams", '[{"team_id": "t", "rpm_limit": "many"}]', "team t: rpm_limit='many'"),
        ("teams", '[{"team_id": "t", "max_budget": -1}]', "max_budget"),
        ("teams", '[{"team_id": "t", "max_budget": 1e400, "budget_duration": "1d"}]', "max_budget"),
        (
            "teams",
            '[{"team_id": "a", "team_alias": "x"}, {"team_id": "b", "team_alias": "x"}]',
            "another team",
        ),
        ("teams", '[{"team_id": "t", "team_alias": "数"}]', "no name can be made"),
        ("keys", '[{"token": "a", "team_id": "nowhere"}]', "which the teams have not"),
        ("keys", '[{"token": "a", "expires": "soon"}]', "expires='soon' is no time"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_where(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "dump.json"
    file.write_text(text)
    assert main(["import", "litellm", f"--{name}", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
