"""``loratorio adapter``: a tenant's adapters, as versions of a name."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from adapters.errors import StoreUnusable
from adapters.stores import open_store
from gateway.catalog.intake import Intake, read_base
from gateway.catalog.models import Adapter
from gateway.catalog.repository import AdapterRepository
from gateway.catalog.service import CatalogService
from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.push import add_push
from gateway.cli.table import Row
from gateway.config import ConfigError
from gateway.identity.service import IdentityService
from gateway.names import checked_name


def add(group: Commands) -> None:
    add_push(group)
    made = add_command(group, "create", create, help="check an adapter and publish it")
    made.add_argument("name", metavar="NAME", help="a name that exists gets the next version")
    made.add_argument("--tenant", required=True, metavar="NAME", help="whose adapter it is")
    made.add_argument(
        "--path", required=True, type=Path, metavar="DIR", help="as PEFT's save_pretrained wrote it"
    )
    made.add_argument("--adapter-store", metavar="URL", help="the server's, if it was given one")
    listed = add_command(group, "list", list_all, help="list a tenant's adapters")
    listed.add_argument("--tenant", required=True, metavar="NAME")
    gone = add_command(group, "revoke", revoke, help="retire an adapter, or one version of it")
    gone.add_argument("name", metavar="NAME", help="or NAME@VERSION")
    gone.add_argument("--tenant", required=True, metavar="NAME")
    gone.add_argument(
        "--grace", type=float, metavar="SECONDS", help="what runs has so long left (default: all)"
    )


async def create(desk: Desk, arguments: argparse.Namespace) -> Row:
    checked_name(arguments.name, param="adapter")
    async with desk.database.reading() as session:  # before the long work of reading the files
        await IdentityService(session, desk.now).project(arguments.tenant)
    location = arguments.adapter_store or desk.stores.adapter_store or desk.files.adapter_store
    try:
        store = open_store(location, cache=desk.files.adapter_cache)
    except StoreUnusable as error:
        raise ConfigError(f"--adapter-store: {error}") from error
    intake = Intake(read_base(desk.files.base_spec), store)
    adapter, facts = await asyncio.to_thread(intake.admit, arguments.path)
    async with desk.database.publish() as session:
        project = await IdentityService(session, desk.now).project(arguments.tenant)
        catalog = CatalogService(session, project.id, desk.now)
        row = await catalog.publish(arguments.name, adapter, facts)
        change = {"name": row.name, "version": row.version, "digest": row.digest}
        await desk.note(session, project.organisation_id, "adapter.created", row.id,
                        project=project.id, change=change)  # fmt: skip
        return _row(row) | {"megabytes": f"{facts.nbytes / 1e6:.1f}"}


async def list_all(desk: Desk, arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.reading() as session:
        project = await IdentityService(session, desk.now).project(arguments.tenant)
        return [_row(row) for row in await AdapterRepository(session, project.id).all()]


async def revoke(desk: Desk, arguments: argparse.Namespace) -> Sequence[Row]:
    async with desk.database.publish() as session:
        project = await IdentityService(session, desk.now).project(arguments.tenant)
        retired = await CatalogService(session, project.id, desk.now).retire(
            arguments.name, grace_s=arguments.grace
        )
        for row in retired:
            change = {"name": row.name, "version": row.version, "grace_s": arguments.grace}
            await desk.note(session, project.organisation_id, "adapter.retired", row.id,
                            project=project.id, change=change)  # fmt: skip
        return [_row(row) for row in retired]


def _row(row: Adapter) -> Row:
    return {
        "id": row.id,
        "name": row.name,
        "version": row.version,
        "rank": row.rank,
        "digest": row.digest[:16],
        "state": row.state,
        "created": row.created_at,
    }
