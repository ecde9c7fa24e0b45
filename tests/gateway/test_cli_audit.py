"""What an operator changes at the command line is in the audit log, whichever command it was."""

import argparse
import asyncio
import json

import msgspec
import pytest
from sqlalchemy import select

from gateway.audit.models import AuditEvent
from gateway.cli.admin import add_commands
from gateway.config import DataDir
from gateway.db import Database
from tests.adapters.builders import BASE, config, lora, write_adapter
from tests.gateway.test_admin_cli import Shell

READ_ONLY = {
    "tenant list", "key list", "adapter list", "credit list", "price list", "period list", "usage",
    "reconcile", "export", "doctor", "top", "user list", "sink list",
}  # fmt: skip
# Through the API; its own notes; no tenant's; the log's own; files alone; all; an engine
ELSEWHERE = {
    "adapter push", "apply", "prepare", "settle", "import litellm", "backup", "restore", "drain",
}  # fmt: skip


def commands() -> set[str]:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    found = set()
    for name, group in parser._subparsers._group_actions[0].choices.items():
        inner = group._subparsers._group_actions[0].choices if group._subparsers else {}
        found |= {f"{name} {each}" for each in inner} or {name}
    return found


@pytest.fixture
def shell(tmp_path, capsys):
    made = Shell(tmp_path, f"sqlite:///{tmp_path}/books.db", capsys)
    DataDir(tmp_path).base_spec.write_bytes(msgspec.json.encode(BASE))
    return made


def events(tmp_path) -> list[AuditEvent]:
    async def read() -> list[AuditEvent]:
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/books.db")
        async with database.reading() as session:
            rows = await session.scalars(select(AuditEvent).order_by(AuditEvent.id))
        await database.close()
        return list(rows)

    return asyncio.run(read())


def test_every_command_that_changes_something_is_audited(shell, tmp_path):
    path = write_adapter(tmp_path / "a", config(), lora())
    done: dict[str, dict] = {}

    def do(*words: str):
        done[" ".join(words[:2])] = answer = shell.ok(*words)
        return answer

    do("tenant", "create", "acme")
    do("tenant", "fields", "acme", "strict")
    do("tenant", "weight", "acme", "--weight", "3")
    do("tenant", "retention", "acme", "--days", "7")
    do("tenant", "texts", "acme", "--days", "30")
    do("tenant", "erase-texts", "acme", "--customer", "ada")
    key = do("key", "create", "--tenant", "acme")
    admin = do("key", "create", "--admin", "--role", "viewer")
    turned = do("key", "rotate", key["id"])
    do("key", "revoke", turned["id"])
    do("adapter", "create", "support", "--tenant", "acme", "--path", str(path))
    do("adapter", "revoke", "support", "--tenant", "acme", "--grace", "2")
    do("credit", "grant", "5")
    do("price", "set", "smol", "--input", "1", "--cached-input", "1", "--output", "1")
    code, out, _ = shell.run("price", "reprice", "--from", "2026-01-01", "--json")  # a note: none
    assert code == 0
    done["price reprice"] = json.loads(out)
    do("period", "close", "2026-01")
    invited = do("user", "add", "ada@acme.example", "--organisation", "default")
    changed = do("user", "password", "ada@acme.example")
    do("user", "revoke", "ada@acme.example")
    do("sink", "customer", "stripe", "default", "cus_1")
    do("tenant", "revoke", "acme")
    assert done.keys() | READ_ONLY | ELSEWHERE == commands()

    found = events(tmp_path)
    assert [event.type for event in found] == [
        "organization.created", "project.created", "project.updated", "project.updated",
        "project.updated", "project.updated", "project.texts_erased",
        "api_key.created", "api_key.created", "api_key.created",
        "api_key.updated", "api_key.deleted",
        "adapter.created", "adapter.retired", "credit.granted", "price.created", "price.repriced",
        "period.closed", "user.added", "login.created", "login.updated", "login.deleted",
        "sink.customer_named", "project.archived",
    ]  # fmt: skip
    assert {event.actor_type for event in found} == {"operator"}
    assert all(event.actor_id for event in found)
    told = repr([event.change for event in found])
    assert "'ada'" not in told, "who is forgotten is not written down for it"
    secrets = (key["key"], admin["key"], turned["key"], invited["password"], changed["password"])
    for secret in secrets:
        assert secret not in told
        assert secret[-40:] not in told


def test_a_change_that_fails_leaves_no_trace(shell, tmp_path):
    shell.ok("tenant", "create", "acme")
    before = len(events(tmp_path))
    shell.fails("tenant", "create", "acme")
    shell.fails("key", "create", "--tenant", "nobody")
    shell.fails("credit", "grant", "5", "--organisation", "nobody")
    shell.fails("period", "close", "2199-01")
    assert len(events(tmp_path)) == before
