"""``loratorio apply``: tenants as one file, brought about whole or not at all."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.table import Row
from gateway.declared.change import Change, Mark
from gateway.declared.declaration import Declaration
from gateway.declared.prices import bring_about_plans, bring_about_prices
from gateway.declared.reading import declaration
from gateway.declared.source import read
from gateway.declared.tenants import bring_about_tenants
from gateway.declared.work import Work

COLOURS = {Mark.MADE: "\x1b[32m", Mark.CHANGED: "\x1b[33m", Mark.ENDED: "\x1b[31m"}
PLAIN = "\x1b[0m"


def add(commands: Commands) -> None:
    made = add_command(
        commands, "apply", apply, help="bring about what a file of tenants says",
        make=True, render=as_diff,
    )  # fmt: skip
    made.add_argument("-f", "--file", required=True, type=Path, metavar="FILE", help="of YAML")
    made.add_argument("--dry-run", action="store_true", help="show the changes, and make none")
    made.add_argument(
        "--prune", action="store_true",
        help="end projects, keys and people that the file's lists of them have not",
    )  # fmt: skip


async def apply(desk: Desk, arguments: argparse.Namespace) -> Sequence[Row]:
    said = declaration(read(arguments.file.read_bytes(), str(arguments.file)))
    peppers = desk.peppers()

    async with desk.database.trial() as session:
        plan = Work(session, desk.now, peppers, prune=arguments.prune)
        await bring_about(plan, said)
    if arguments.dry_run or not plan.changes:
        return [_row(change, planned=True) for change in plan.changes]
    async with desk.database.publish(alone=True) as session:
        work = Work(session, desk.now, peppers, prune=arguments.prune)
        await bring_about(work, said)
    return [_row(change, planned=False) for change in work.changes]


async def bring_about(work: Work, said: Declaration) -> None:
    await bring_about_plans(work, said)
    await bring_about_prices(work, said)
    await bring_about_tenants(work, said)
    await work.session.flush()


def as_diff(rows: Sequence[Row]) -> str:
    """Coloured on a terminal, unless NO_COLOR is set."""
    if not rows:
        return "Nothing to change."
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return "\n".join(_line(row, coloured=coloured) for row in rows)


def _line(row: Row, *, coloured: bool) -> str:
    change = Change(
        Mark(str(row["change"])), str(row["path"]), str(row["before"]), str(row["after"])
    )
    key = f"\n    key, shown this once: {row['key']}" if row["key"] else ""
    if not coloured:
        return f"{change}{key}"
    return f"{COLOURS[change.mark]}{change}{PLAIN}{key}"


def _row(change: Change, *, planned: bool) -> Row:
    return {
        "change": str(change.mark),
        "path": change.path,
        "before": change.before,
        "after": change.after,
        "key": None if planned else change.secret,
    }
