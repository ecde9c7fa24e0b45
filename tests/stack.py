"""Gateways and what they need as real processes: what tests of faults and benchmarks share."""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.cli.child import die_with_parent
from gateway.config import Secret, Settings
from gateway.db import Database
from gateway.identity.models import Project
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.limits.models import Level
from gateway.limits.rules import NO_RATES, Rates, Subject
from gateway.limits.service import LimitService
from gateway.usage.service import PriceList
from migrations import runner
from tests.e2e.server import free_ports
from tests.gateway.serving import BASE, build_model_dir

ROOT = Path(__file__).parents[1]
PRICES = ("0.001", "0.001", "0.002")  # dollars per million tokens: input, cached, output
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST_S = 30.0  # for a process to end


@dataclass
class Program:
    """One of the two, started again on the same data whenever asked."""

    name: str
    arguments: tuple[str, ...]
    process: asyncio.subprocess.Process | None = None
    stopped: bool = False

    async def start(self, log: Path) -> None:
        with log.open("ab") as stream:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *self.arguments, cwd=ROOT, stdout=stream, stderr=stream,
                env=os.environ | {"PYTHONPATH": _python_path()},
                preexec_fn=die_with_parent(signal.SIGKILL),
            )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.returncode is None:
            self.send(signal.SIGCONT)
            self.send(number)
            await asyncio.wait_for(self.process.wait(), LONGEST_S)


def _python_path() -> str:
    """What is found beside the tests is found by what they start."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def settings_in(
    folder: Path, database_url: str | None, redis_url: str | None, **more: Any
) -> Settings:
    """Of a gateway with one engine; its data directory is made."""
    port, metrics_port = free_ports(2)
    chosen = Settings(
        data_dir=folder / "data",
        model_dir=build_model_dir(folder / "model"),
        served_model_name=BASE,
        engines=(f"unix:{folder}/e.sock",),
        port=port,
        metrics_port=metrics_port,
        database_url=Secret(database_url) if database_url else None,
        redis_url=Secret(redis_url) if redis_url else None,
        **more,
    )
    chosen.data_dir.mkdir()
    return chosen


def gateway_of(settings: Settings, folder: Path) -> Program:
    file = folder / f"gateway-{settings.worker}.json"
    file.write_bytes(settings.to_json())
    return Program("gateway", ("-m", "gateway", "serve", "--settings", str(file)))


async def tenant_in(
    settings: Settings, terms: KeyTerms, budget: int | None = None, rates: Rates = NO_RATES
) -> tuple[str, str]:
    """An organisation's id and a key of its project, in a migrated database.

    With a ``budget``, nano-dollars a month, a token costs 1 nano in and 2 out. ``rates`` hold for
    organisation, project and key, each.
    """
    database = Database(settings.database)
    await runner.upgrade(database)
    async with database.publish() as session:
        service = IdentityService(session, datetime.now(UTC))
        project = await service.create_project("acme")
        peppers = Peppers.load(settings.pepper, settings.pepper_file)
        key = service.issue(project, terms, peppers=peppers)
        limits = LimitService(session, project.organisation_id, datetime.now(UTC))
        for subject in _subjects(project, key.id):
            await limits.set_rates(subject, rates)
        if budget is not None:
            PriceList(session, NEW_YEAR).set(BASE, PRICES)
            await limits.set_budget(Subject(Level.PROJECT, project.id), "month", budget)
        found = project.organisation_id, key.text
    await database.close()
    return found


def _subjects(project: Project, key: str) -> tuple[Subject, ...]:
    return (
        Subject(Level.ORGANISATION, project.organisation_id),
        Subject(Level.PROJECT, project.id),
        Subject(Level.KEY, key),
    )
