"""``loratorio apply``: a file of tenants, brought about whole, once, and audited."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.cli.main import main
from gateway.db import Database
from gateway.identity.pepper import Peppers
from gateway.limits.models import Level
from gateway.limits.rules import Subject
from gateway.snapshot import LiveSnapshot

EXAMPLE = Path(__file__).parents[2] / "docs/tenants.yaml"
SMALL = """
organisations:
  acme:
    projects:
      web: {rates: {concurrency: 8}, keys: {ci: {}, old: {}}}
      shop: {}
"""


class Shop:
    """One data directory, on SQLite or with a Postgres beside it."""

    def __init__(self, folder: Path, url: str, capsys) -> None:
        self.folder, self.url, self._capsys = folder, url, capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--data-dir", str(self.folder), "--database-url", self.url])
        return code, *self.said()

    def said(self) -> tuple[str, str]:
        """Since the last time, on stdout and stderr."""
        return self._capsys.readouterr()

    def apply(self, file: Path | str, *more: str) -> list[dict[str, str]]:
        code, out, err = self.run("apply", "-f", str(self._file(file)), "--json", *more)
        assert code == 0, err
        return json.loads(out)

    def refused(self, file: str) -> str:
        code, out, err = self.run("apply", "-f", str(self._file(file)))
        assert (code, out) == (1, "")
        return err

    def _file(self, file: Path | str) -> Path:
        if isinstance(file, Path):
            return file
        written = self.folder / "tenants.yaml"
        self.folder.mkdir(exist_ok=True)
        written.write_text(file)
        return written


@pytest.fixture
def shop(tmp_path, migrated_url, capsys):
    return Shop(tmp_path / "data", migrated_url, capsys)


async def snapshot_of(shop: Shop) -> LiveSnapshot:
    database = Database(shop.url)
    live = LiveSnapshot(
        database, Peppers.load(None, shop.folder / "pepper"), base_model="smollm2-135m-instruct"
    )
    await live.refresh()
    await database.close()
    return live


async def asked(shop: Shop, query: str) -> list[tuple]:
    database = Database(shop.url)
    async with database.reading() as session:
        found = [tuple(row) for row in await session.execute(text(query))]
    await database.close()
    return found


def run(coroutine):
    return asyncio.run(coroutine)


def test_the_example_is_brought_about_once(shop):
    planned = shop.apply(EXAMPLE, "--dry-run")
    assert run(asked(shop, "SELECT count(*) FROM organisation")) == [(0,)]
    done = shop.apply(EXAMPLE)
    assert [each["path"] for each in done] == [each["path"] for each in planned]
    assert all(each["key"] is None for each in planned)
    keys = {each["path"].split(".")[-1]: each["key"] for each in done if each["key"]}
    assert keys.keys() == {"terraform", "production"}

    live = run(snapshot_of(shop))
    who = live.authenticate(keys["production"])
    assert (who.endpoints, who.networks) == (
        ("/v1/chat/completions", "/v1/models"), ("10.0.0.0/8", "2001:db8::/32"),
    )  # fmt: skip
    assert live.authenticate(keys["terraform"]).role == "admin"
    rules = live.rules()
    assert rules.rates[Subject(Level.KEY, who.key)].requests_per_minute == 300
    assert rules.rates[Subject(Level.PROJECT, who.project, "support")].tokens_per_minute == 20000
    assert rules.rates[Subject(Level.TAG, f"{who.project}/job=nightly")].concurrency == 2
    [day] = rules.allowances[Subject(Level.ORGANISATION, who.organisation)]
    assert (day.period, day.nano, day.time_zone, day.soft) == (
        "day", 4_500_000_000, "Europe/Berlin", True,
    )  # fmt: skip
    [plan] = {subject for subject in rules.rates if subject.level is Level.PLAN}
    assert rules.plans == {who.organisation: plan.id}
    tariff = live.current.prices.at("smollm2-135m-instruct", None, datetime.now(UTC))
    assert (tariff.input, tariff.cached_input, tariff.output) == (200_000, 50_000, 800_000)

    epoch = live.current.epoch
    events = run(asked(shop, "SELECT count(*) FROM audit_event"))
    assert shop.apply(EXAMPLE) == []
    assert run(snapshot_of(shop)).current.epoch == epoch
    assert run(asked(shop, "SELECT count(*) FROM audit_event")) == events
    told = run(asked(shop, "SELECT CAST(change AS TEXT) FROM audit_event"))
    assert not [change for (change,) in told if "sk-" in change]


def test_a_change_is_shown_made_and_audited(shop):
    shop.apply(SMALL)
    again = SMALL.replace("concurrency: 8", "concurrency: 9, requests_per_day: 5")
    code, out, _ = shop.run("apply", "-f", str(shop._file(again)))
    assert code == 0
    assert out.splitlines() == [
        "~ organisations.acme.projects.web.rates.requests_per_day: none -> 5",
        "~ organisations.acme.projects.web.rates.concurrency: 8 -> 9",
    ]
    kinds = run(asked(shop, "SELECT type, actor_type FROM audit_event ORDER BY number DESC"))
    assert kinds[0] == ("project.limits.updated", "operator")


def test_what_is_missing_ends_only_when_pruned(shop):
    keys = {each["path"]: each["key"] for each in shop.apply(SMALL)}
    less = "organisations: {acme: {projects: {web: {keys: {ci: {}}}}}}"
    assert shop.apply(less) == []
    ended = shop.apply(less, "--prune")
    assert [(each["change"], each["path"]) for each in ended] == [
        ("-", "organisations.acme.projects.web.keys.old"),
        ("-", "organisations.acme.projects.shop"),
    ]
    live = run(snapshot_of(shop))
    assert live.authenticate(keys["organisations.acme.projects.web.keys.ci"])
    with pytest.raises(Exception, match="Incorrect API key"):
        live.authenticate(keys["organisations.acme.projects.web.keys.old"])
    assert shop.apply(less, "--prune") == []
    assert shop.apply("organisations: {acme: {}}", "--prune") == []  # lists nothing


def test_a_file_that_fails_late_changes_nothing(shop):
    bad = SMALL + "      last: {people: {nobody@acme.example: viewer}}\n"
    told = shop.refused(bad)
    assert "organisations.acme.projects.last.people.nobody@acme.example" in told
    assert run(asked(shop, "SELECT count(*) FROM organisation")) == [(0,)]


def test_of_those_who_apply_a_file_at_once_one_does_and_the_rest_find_it_done(shop):
    file = str(shop._file(SMALL))
    shop.run("tenant", "list")  # there is a pepper
    command = ["apply", "-f", file, "--data-dir", str(shop.folder), "--database-url", shop.url]
    with ThreadPoolExecutor(4) as threads:
        codes = list(threads.map(main, [command] * 4, timeout=60))
    said = shop.said()
    assert codes == [0] * 4, said
    assert run(asked(shop, "SELECT count(*) FROM organisation WHERE name = 'acme'")) == [(1,)]
    assert shop.apply(SMALL) == []


def test_a_wrong_price_is_corrected_by_another(shop):
    price = "prices: [{model: m, input: %s, cached_input: 0, output: 1, from: 2026-12-01}]"
    assert len(shop.apply(price % "0.1")) == 1
    assert shop.apply(price % "0.1") == []
    [change] = shop.apply(price % "0.2")
    assert (change["before"], change["after"]) == (
        "$0.1 / $0 / $1", "$0.2 / $0 / $1 from 2026-12-01T00:00Z",
    )  # fmt: skip
    assert shop.apply(price % "0.2") == []
    assert run(asked(shop, "SELECT count(*) FROM price")) == [(2,)]


A = "organisations: {a: {%s}}"
P = A % "projects: {p: {%s}}"
BAD = [
    ("", r"tenants.yaml: is empty"),
    ("a: [", r"tenants.yaml:1: "),
    ("\t", r"tenants.yaml:1: "),
    ("a: 1\n---\nb: 2", r"tenants.yaml:2: "),
    ("- a", r"tenants.yaml:1: the file: must be a mapping"),
    ("tenants: {}", r"tenants.yaml:1: tenants: unknown; here may stand plans, prices"),
    ("organisations: {a: {}, a: {}}", r":1: organisations.a: stands twice"),
    ("organisations:\n  no: {}", r":2: organisations.no: put this name into quotes"),
    ("organisations: {a b: {}}", r"organisations.a b: name 'a b'"),
    ("organisations: {a: 3}", r"organisations.a: must be a mapping"),
    (A % "plan: gold", r"organisations.a.plan: there is no plan 'gold'"),
    (A % "billing: later", r"organisations.a.billing: postpaid or prepaid"),
    (A % "rates: {requests_per_minute: -1}", r"a.rates.requests_per_minute: -1: from 0"),
    (A % "rates: {requests_per_minute: 1.5}", r"a.rates.requests_per_minute: must be a whole"),
    (A % "rates: {requests_per_minute: yes}", r"a.rates.requests_per_minute: must be a whole"),
    (A % "rates: {rpm: 1}", r"a.rates.rpm: unknown; here may stand requests_per_minute"),
    (A % "budgets: {}", r"a.budgets: must be a list"),
    (A % "budgets: [{usd: 1}]", r"a.budgets\[0\]: period must be given"),
    (A % "budgets: [{period: week, usd: 1}]", r"a.budgets\[0\].period: day or month"),
    (A % "budgets: [{period: day, usd: .inf}]", r"a.budgets\[0\].usd: must be a number"),
    (A % "budgets: [{period: day, usd: 1e-10}]", r"a.budgets\[0\].usd: dollars, from 0"),
    (A % "budgets: [{period: day, usd: 1, time_zone: Mars/X}]", r"budgets\[0\].time_zone: "),
    (A % "budgets: [{period: day, usd: 1, on_exhaust: stop}]", r"on_exhaust: 'stop': one of"),
    (A % "budgets: [{period: day, usd: 1}, {period: day, usd: 2}]", r"budgets\[1\].period: there"),
    (A % "people: {ann: {role: owner}}", r"a.people.ann: email is not an e-mail address"),
    (A % "people: {a@b: {role: king}}", r"a.people.a@b.role: 'king': one of owner"),
    (A % "people: {a@b: {}}", r"a.people.a@b: role must be given"),
    (P % "keys: {k: {expires: soon}}", r"p.keys.k.expires: write 2027-01-31"),
    (P % "keys: {k: {expires: 2020-01-01}}", r"p.keys.k: the expiry is in the past"),
    (P % "keys: {k: {networks: [10.0.0.1/8]}}", r"k.networks\[0\]: must be a range"),
    (P % "keys: {k: {endpoints: [chat]}}", r"k.endpoints\[0\]: must be a path"),
    (P % "tags: {nightly: {}}", r"p.tags.nightly: a tag is name=value"),
    ("prices: [{input: 1, cached_input: 1, output: 1}]", r"prices\[0\]: give a model"),
    ("prices: [{model: m, input: 1, output: 1}]", r"prices\[0\]: cached_input must be given"),
    ("prices: [{model: m, input: -1, cached_input: 1, output: 1}]", r"prices\[0\].input: "),
    ("prices: [{adapter: adp_x, input: 1, cached_input: 1, output: 1}]", r"no adapter 'adp_x'"),
]  # fmt: skip


def test_what_is_wrong_is_told_with_file_line_and_path(shop):
    for file, told in BAD:
        said = shop.refused(file)
        assert re.search(told, said), (file, said)
        assert said.count("\n") == 1


def test_a_file_that_is_not_there_is_told(shop):
    code, _, err = shop.run("apply", "-f", "nowhere.yaml")
    assert code == 1
    assert "nowhere.yaml" in err
