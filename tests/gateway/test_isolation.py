"""On Postgres a tenant's transaction sees its own rows, whatever the query forgets to say."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Column, MetaData, String, Table, text
from sqlalchemy.exc import DBAPIError

from engine.protocol import AdapterRef
from gateway.catalog.service import CatalogService
from gateway.db import TENANT_ROLE, Tenancy
from gateway.identity.pepper import Peppers
from gateway.identity.service import IdentityService, KeyTerms
from gateway.usage.report import EVER, UsageReport
from gateway.usage.rollups import Rollups
from gateway.usage.service import PriceList
from migrations import runner
from migrations.isolation import SHARED, NotIsolated, isolate, rule
from tests.gateway.test_report import event, write

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PEPPERS = Peppers.parse("1:" + "11" * 32, "test")
ISOLATED = sorted(set(runner.METADATA.tables) - set(SHARED))


@pytest.fixture
def backend() -> str:
    return "postgres"


@pytest.fixture
async def tenants(database) -> dict[str, Tenancy]:
    """Two organisations with two projects each, and everything a tenant can have."""
    found = {}
    for organisation in ("one", "two"):
        for name in ("a", "b"):
            async with database.publish() as session:
                service = IdentityService(session, NOW)
                project = await service.create_project(name, organisation)
                await session.flush()
                service.issue(project, KeyTerms(), peppers=PEPPERS)
                adapter = await CatalogService(session, project.id, NOW).publish(
                    "support", AdapterRef("d" * 64, 8)
                )
                await session.flush()
                PriceList(session, NOW).set(None, ("1", "1", "1"), adapter_id=adapter.id)
            tenancy = Tenancy(project.organisation_id, project.id)
            found[f"{organisation}/{name}"] = tenancy
            await write(
                database,
                event(organisation_id=tenancy.organisation, project_id=tenancy.project),
                log=f"log_{organisation}_{name}",
            )
    await Rollups(database).roll_up()
    return found


async def seen(database, within: Tenancy | None, table: str) -> int:
    async with database.reading(within=within) as session:
        counted = text(f"SELECT count(*) FROM {table}")
        return (await session.execute(counted)).scalar_one()


@pytest.mark.parametrize("table", sorted(runner.METADATA.tables))
async def test_every_table_has_a_policy_or_is_said_to_be_shared(database, table):
    query = text(
        "SELECT c.relrowsecurity, (SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid)"
        " FROM pg_class c WHERE c.oid = CAST(:name AS regclass)"
    )
    async with database.reading() as session:
        secured, policies = (await session.execute(query, {"name": table})).one()
        bypass = text("SELECT rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = :role")
        assert not (await session.execute(bypass, {"role": TENANT_ROLE})).scalar_one()
    assert (secured, policies) == ((False, 0) if table in SHARED else (True, 1))


@pytest.mark.parametrize("table", ISOLATED)
async def test_without_a_tenant_that_exists_no_row_does(database, tenants, table):
    nobody = await seen(database, Tenancy("", ""), table)
    assert nobody == await seen(database, Tenancy("org_none", "prj_none"), table) == 0


async def test_a_forged_tenant_is_a_name_of_nobody_and_never_a_pattern_or_sql(database, tenants):
    one = tenants["one/a"]
    for forged in ("%", "_", "*", "' OR true --", f"{one.organisation} ", one.organisation.upper()):
        for table in TABLES:
            assert await seen(database, Tenancy(forged), table) == 0, (forged, table)
            assert await seen(database, Tenancy(forged, one.project), table) == 0
            if table != "project":  # of which an organisation may see its own
                assert await seen(database, Tenancy(one.organisation, forged), table) == 0


TABLES = ("project", "api_key", "adapter", "price", "usage_event", "usage_rollup")


@pytest.mark.parametrize("table", TABLES)
async def test_an_organisation_sees_its_own_rows_and_a_project_only_its_own(
    database, tenants, table
):
    assert await seen(database, None, table) == 4
    for tenancy in tenants.values():
        assert await seen(database, Tenancy(tenancy.organisation), table) == 2
        assert await seen(database, tenancy, table) == 1
        foreign = next(t for t in tenants.values() if t.organisation != tenancy.organisation)
        assert await seen(database, Tenancy(tenancy.organisation, foreign.project), table) == 0


async def test_rows_of_others_cannot_be_changed_made_or_removed(database, tenants):
    mine, foreign = tenants["one/a"], tenants["two/a"]
    within = Tenancy(mine.organisation)
    for change in ("UPDATE project SET created_at = now()", "DELETE FROM api_key"):
        async with database.unit_of_work(within=within) as session:
            assert (await session.execute(text(change))).rowcount == 2
    assert await seen(database, Tenancy(foreign.organisation), "api_key") == 2
    with pytest.raises(DBAPIError, match="row-level security"):
        async with database.unit_of_work(within=within) as session:
            await session.execute(
                text(
                    "INSERT INTO project (id, organisation_id, name, created_at)"
                    f" VALUES ('prj_x', '{foreign.organisation}', 'x', now())"
                )
            )


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM usage_event",
        "UPDATE usage_rollup SET requests = 0",
        "UPDATE price SET output_pico = 0",
        "SELECT * FROM log_position",
        "SELECT * FROM usage_event_20261130",  # a partition has no policy of its own
        "SELECT usage_partition('2026-12-24')",
    ],
)
async def test_what_no_tenant_may_do_is_refused(database, tenants, statement):
    with pytest.raises(DBAPIError, match="permission denied"):
        async with database.unit_of_work(within=tenants["one/a"]) as session:
            await session.execute(text(statement))


async def test_the_role_ends_with_the_transaction(database, tenants):
    for _ in range(20):  # connections of the pool are used again
        assert await seen(database, tenants["one/a"], "adapter") == 1
        assert await seen(database, None, "adapter") == 4


async def test_reports_say_the_same_within_the_tenancy(database, tenants):
    tenancy = tenants["one/a"]
    for within in (None, tenancy, Tenancy(tenancy.organisation)):
        async with database.reading(within=within) as session:
            report = UsageReport(session, tenancy.organisation, tenancy.project)
            assert (await report.total(EVER)).requests == 1


async def test_publishing_within_a_tenancy_moves_the_epoch(database, tenants):
    before = await database.epoch()
    async with database.publish(within=tenants["one/a"]) as session:
        await session.execute(text("UPDATE api_key SET name = 'renamed'"))
    assert await database.epoch() == before + 1


async def test_isolating_again_changes_nothing_and_restores_what_was_taken_off(database):
    async def drop() -> None:
        async with database.transaction() as connection:
            await connection.execute(text("DROP POLICY tenant ON adapter"))

    async def policies() -> int:
        async with database.reading() as session:
            return (await session.execute(text("SELECT count(*) FROM pg_policy"))).scalar_one()

    before = await policies()
    await drop()
    assert await policies() == before - 1
    for _ in range(2):
        async with database.transaction() as connection:
            await connection.run_sync(isolate, runner.METADATA)
        assert await policies() == before


def test_a_table_that_says_not_whose_its_rows_are_is_refused():
    stray = Table("stray", MetaData(), Column("id", String, primary_key=True))
    with pytest.raises(NotIsolated, match="stray"):
        rule(stray)
