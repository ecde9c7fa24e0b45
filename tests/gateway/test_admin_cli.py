"""The operator's commands, through the real command line, on both databases."""

import argparse
import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from gateway.cli.admin import add_commands
from gateway.cli.keys import parse_expiry
from gateway.cli.moment import moment
from gateway.cli.table import as_table
from gateway.config import DataDir
from gateway.db import Database
from gateway.errors import InvalidRequest, ModelNotFound, Unauthenticated
from gateway.identity.pepper import Peppers
from gateway.identity.repository import IdentityRepository
from gateway.snapshot import LiveSnapshot
from gateway.usage.log import UsageLog
from gateway.usage.recorder import Recorder
from tests.adapters.builders import BASE, config, lora, write_adapter
from tests.gateway.test_ledger import record, started


class Shell:
    """Runs one command as a person would; ``ok`` gives its JSON."""

    def __init__(self, data_dir: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.data_dir, self.url, self._capsys = data_dir, url, capsys
        self._parser = argparse.ArgumentParser(prog="loratorio")
        add_commands(self._parser.add_subparsers(required=True))

    def run(self, *words: str, options: tuple[str, ...] | None = None) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        where = ("--data-dir", str(self.data_dir), "--database-url", self.url)
        arguments = self._parser.parse_args([*words, *(where if options is None else options)])
        code = arguments.run(arguments)
        return code, *self._capsys.readouterr()

    def settings(self, **more: object) -> tuple[str, ...]:
        """The same by a gateway's settings file."""
        said = {
            "data_dir": str(self.data_dir), "model_dir": "/m", "served_model_name": "base",
            "engines": ["unix:/e"], "database_url": self.url, **more,
        }  # fmt: skip
        self.data_dir.mkdir(exist_ok=True)
        file = self.data_dir / "gateway.json"
        file.write_text(json.dumps(said))
        return ("--settings", str(file))

    def ok(self, *words: str):
        code, out, err = self.run(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    def fails(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert (code, out) == (1, "")
        assert err.startswith("loratorio: error: ")
        assert err.count("\n") == 1
        return err

    def live(self) -> LiveSnapshot:
        """What a gateway would see now."""

        async def load() -> LiveSnapshot:
            database = Database(DataDir(self.data_dir).database(None) if not self.url else self.url)
            live = LiveSnapshot(
                database,
                Peppers.load(None, DataDir(self.data_dir).pepper),
                base_model="smol",
            )
            await live.refresh()
            await database.close()
            return live

        return asyncio.run(load())


@pytest.fixture
def shell(tmp_path, migrated_url, capsys) -> Shell:
    return Shell(tmp_path / "data", migrated_url, capsys)


def test_a_tenant_its_key_and_the_end_of_both(shell):
    tenant = shell.ok("tenant", "create", "acme")
    key = shell.ok("key", "create", "--tenant", "acme", "--rpm", "5", "--tpm", "700")
    principal = shell.live().authenticate(key["key"])
    assert (principal.project, principal.key) == (tenant["id"], key["id"])
    assert (principal.requests_per_minute, principal.tokens_per_minute) == (5, 700)
    assert [row["name"] for row in shell.ok("tenant", "list")] == ["acme"]

    other = shell.ok("key", "create", "--tenant", "acme", "--name", "ci")["key"]
    shell.ok("key", "revoke", key["id"])
    with pytest.raises(Unauthenticated):
        shell.live().authenticate(key["key"])
    shell.live().authenticate(other)
    states = {row["name"]: row["state"] for row in shell.ok("key", "list", "--tenant", "acme")}
    assert states == {"default": "revoked", "ci": "active"}

    shell.ok("tenant", "revoke", "acme")
    with pytest.raises(Unauthenticated):
        shell.live().authenticate(other)
    assert shell.ok("tenant", "list") == []
    shell.ok("tenant", "create", "acme")


def test_a_gateways_settings_say_where_everything_is(shell):
    """Its pepper too: a key hashed with another would be nobody's."""
    pepper = "7:" + "ab" * 32
    where = shell.settings(pepper=pepper)
    assert shell.run("tenant", "create", "acme", options=where)[0] == 0
    code, out, _ = shell.run("key", "create", "--tenant", "acme", "--json", options=where)
    assert code == 0
    assert [row["name"] for row in shell.ok("tenant", "list")] == ["acme"]
    assert not DataDir(shell.data_dir).pepper.exists()
    with pytest.raises(Unauthenticated):
        shell.live().authenticate(json.loads(out)["key"])  # by the pepper in the data directory


def test_settings_that_cannot_be_read_are_one_line(shell, tmp_path):
    code, _, said = shell.run("tenant", "list", options=("--settings", str(tmp_path / "none")))
    assert (code, said.count("\n")) == (1, 1)
    (tmp_path / "bad").write_text("{}")
    code, _, said = shell.run("tenant", "list", options=("--settings", str(tmp_path / "bad")))
    assert (code, said.count("\n")) == (1, 1)
    assert "data_dir" in said


def test_lists_never_show_a_key_or_its_hash(shell):
    shell.ok("tenant", "create", "acme")
    key = shell.ok("key", "create", "--tenant", "acme")["key"]
    _, out, _ = shell.run("key", "list")
    assert key not in out
    assert key[-4:] in out
    assert key.split("-")[3] not in out


def test_an_admin_key_belongs_to_an_organisation(shell):
    shell.ok("tenant", "create", "acme", "--organisation", "acme-corp")
    key = shell.ok("key", "create", "--admin", "--organisation", "acme-corp")["key"]
    assert key.startswith("sk-admin-")
    principal = shell.live().authenticate(key)
    assert (principal.admin, principal.project) == (True, "")


def test_adapters_are_checked_stored_and_counted_up(shell, tmp_path):
    shell.ok("tenant", "create", "acme")
    shell.ok("tenant", "create", "globex")
    key = shell.ok("key", "create", "--tenant", "acme")["key"]
    foreign = shell.ok("key", "create", "--tenant", "globex")["key"]
    DataDir(shell.data_dir).base_spec.write_bytes(msgspec.json.encode(BASE))
    for seed, version in ((0, 1), (1, 2)):
        folder = write_adapter(tmp_path / f"a{seed}", tensors=lora(seed=seed))
        row = shell.ok("adapter", "create", "support", "--tenant", "acme", "--path", str(folder))
        assert (row["version"], row["rank"], row["state"]) == (version, 4, "ready")
    live = shell.live()
    mine = live.authenticate(key)
    newest = live.resolve(mine, "support").adapter
    assert newest == live.resolve(mine, "support@2").adapter
    assert (DataDir(shell.data_dir).adapter_store / "sha256" / newest.digest).is_dir()
    with pytest.raises(ModelNotFound):
        live.resolve(live.authenticate(foreign), "support")

    shell.ok("adapter", "revoke", "support@2", "--tenant", "acme")
    live = shell.live()
    assert live.resolve(mine, "support").adapter == live.resolve(mine, "support@1").adapter
    shell.ok("adapter", "revoke", "support", "--tenant", "acme")
    with pytest.raises(ModelNotFound):
        shell.live().resolve(mine, "support")
    rows = shell.ok("adapter", "list", "--tenant", "acme")
    assert [row["state"] for row in rows] == ["retired", "retired"]


def test_an_adapter_that_does_not_fit_says_why_in_one_line(shell, tmp_path):
    shell.ok("tenant", "create", "acme")
    create = ("adapter", "create", "x", "--tenant", "acme", "--path")
    assert "base.json: not found" in shell.fails(*create, str(tmp_path))
    DataDir(shell.data_dir).base_spec.write_bytes(msgspec.json.encode(BASE))
    assert "no such directory" in shell.fails(*create, str(tmp_path / "nothing"))
    folder = write_adapter(tmp_path / "bad", config(r=4), lora(layer=99))
    assert "99" in shell.fails(*create, str(folder))
    assert shell.ok("adapter", "list", "--tenant", "acme") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tenant", "create", "a/b"), "tenant 'a/b': use 1 to 64"),
        (("tenant", "create", "acme"), "tenant default/acme exists"),
        (("tenant", "revoke", "nobody"), "no tenant 'nobody'"),
        (("key", "create", "--tenant", "nobody"), "no tenant 'nobody'"),
        (("key", "create"), "give --tenant NAME"),
        (("key", "create", "--tenant", "acme", "--admin"), "give --tenant NAME"),
        (("key", "create", "--tenant", "acme", "--rpm", "0"), "requests_per_minute 0"),
        (("key", "create", "--tenant", "acme", "--expires", "soon"), "expiry 'soon'"),
        (("key", "create", "--tenant", "acme", "--expires", "2001-01-01"), "in the past"),
        (("key", "create", "--tenant", "acme", "--environment", "admin"), "environment 'admin'"),
        (("key", "create", "--tenant", "acme", "--environment", "a-b"), "environment 'a-b'"),
        (("key", "create", "--admin", "--organisation", "none"), "no organisation"),
        (("key", "revoke", "key_none"), "no key of this id"),
        (("adapter", "list", "--tenant", "nobody"), "no tenant"),
        (("adapter", "revoke", "x", "--tenant", "acme"), "no adapter 'x'"),
        (("adapter", "revoke", "x@y", "--tenant", "acme"), "write name or name@3"),
        (("usage", "--tenant", "nobody"), "no tenant"),
        (("price", "reprice", "--from", "2026-11-30", "--to", "2026-11-01"), "is not before --to"),
        (("export", "--period", "2199-01"), "2199-01 has not begun"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_said_in_one_line(shell, words, said):
    shell.ok("tenant", "create", "acme")
    assert said in shell.fails(*words)


def test_a_tenant_may_have_unknown_fields_refused(shell):
    assert shell.ok("tenant", "create", "acme")["fields"] == "lenient"
    shell.ok("tenant", "fields", "acme", "strict")
    assert shell.ok("tenant", "list")[0]["fields"] == "strict"
    shell.ok("tenant", "fields", "acme", "lenient")
    assert shell.ok("tenant", "list")[0]["fields"] == "lenient"


def test_a_tenant_name_used_twice_needs_its_organisation(shell):
    shell.ok("tenant", "create", "acme", "--organisation", "one")
    shell.ok("tenant", "create", "acme", "--organisation", "two")
    assert "one/acme, two/acme" in shell.fails("key", "create", "--tenant", "acme")
    shell.ok("key", "create", "--tenant", "two/acme")


def test_the_commands_begin_on_an_empty_data_directory(tmp_path, capsys):
    shell = Shell(tmp_path / "new", "", capsys)
    where = ("--data-dir", str(shell.data_dir))
    code, _, err = shell.run("tenant", "list", options=where)
    assert (code, "does not exist" in err, shell.data_dir.exists()) == (1, True, False)
    assert shell.run("tenant", "create", "acme", options=where)[0] == 0
    _, out, _ = shell.run("tenant", "list", options=where)
    assert "acme" in out


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/d",
        "mysql://u:hunter2@h/d",
        "postgresql://u:hunter2@h:x/d",
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_its_password(tmp_path, capsys, url):
    err = Shell(tmp_path, url, capsys).fails("tenant", "list")
    assert "hunter2" not in err


async def organisation_of(shell: "Shell") -> str:
    database = Database(shell.url)
    async with database.reading() as session:
        (project,) = await IdentityRepository(session).projects()
    await database.close()
    return project.organisation_id


def test_usage_prices_and_settling(shell):
    tenant = shell.ok("tenant", "create", "acme")
    price = ("--input", "0.15", "--cached-input", "0.015", "--output", "0.6")
    shell.ok("price", "set", "smol", *price)
    (now,) = shell.ok("price", "list")
    assert (now["cached_input"], now["until"]) == ("0.015", None)
    early = ("price", "set", "smol", *price, "--from", "2026-01-01", "--json")
    _, out, note = shell.run(*early)
    assert json.loads(out)["until"] == now["from"]  # the later one holds from there on
    assert "note: holds only until 20" in note
    assert "note: what was charged already stays so until `loratorio price reprice --from" in note
    _, out, note = shell.run(*early, "--tier", "batch")
    assert (json.loads(out)["until"], "holds only" in note) == (None, False)
    _, out, note = shell.run("price", "reprice", "--from", "2026-01-01")
    assert "`loratorio price list` shows from when until when" in note
    usage_log = UsageLog(DataDir(shell.data_dir).usage_log(0))

    async def serve_a_little() -> None:
        recorder = await Recorder.open(usage_log)
        await record(recorder, "req_other")
        now = int(datetime.now(UTC).timestamp()) * 10**9 + 10**9
        owner = {"project": tenant["id"], "organisation": await organisation_of(shell)}
        await recorder.started(started("req_cut_off", at_ns=now, **owner))
        await recorder.close()

    asyncio.run(serve_a_little())
    assert shell.ok("settle") == {"records": 3}
    (row,) = shell.ok("usage", "--tenant", "acme")
    assert (row["requests"], row["completion_tokens"], row["cost_usd"]) == (1, 0, "0")

    lock = usage_log.lock()
    assert "a gateway is running" in shell.fails("settle")
    lock.release()


NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("12h", datetime(2026, 12, 1, 0, tzinfo=UTC)),
        ("30d", datetime(2026, 12, 30, 12, tzinfo=UTC)),
        ("2w", datetime(2026, 12, 14, 12, tzinfo=UTC)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_expiries_are_spans_or_moments(text, moment):
    assert parse_expiry(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "0d", "-1d", "5m", "99999999d", "tomorrow"])
def test_other_expiries_are_refused(text):
    with pytest.raises(InvalidRequest):
        parse_expiry(text, NOW)


@pytest.mark.parametrize(
    "text", ["yesterday", "0001-01-01", "9999-12-31T23:59:59+14:00", "2026-13-01"]
)
def test_what_is_no_time_is_said_with_an_example_or_the_limits(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no time like 2026|is not from 2000"):
        moment(text)


def test_a_table_lines_up():
    rows = [{"name": "a", "rpm": None}, {"name": "long-name", "rpm": 5}]
    assert as_table(rows) == "NAME       RPM\na          -\nlong-name  5"
    assert as_table([]) == "(none)"


def test_how_long_responses_are_kept_is_a_tenants_own(shell):
    shell.ok("tenant", "create", "acme")
    assert shell.ok("tenant", "retention", "acme", "--days", "7") == {"name": "acme", "days": 7}
    assert shell.ok("tenant", "retention", "acme", "--days", "0")["days"] == 0
    assert "--days" in shell.fails("tenant", "retention", "acme", "--days", "-1")
    assert "nobody" in shell.fails("tenant", "retention", "nobody", "--days", "1")
