"""Public model names: the base, a project's own adapters, and the same refusal for all others."""

import json
from datetime import UTC, datetime

import pytest

from engine.protocol import AdapterRef
from gateway.catalog.bases import Bases, ServedBase
from gateway.catalog.catalogue import AdapterEntry, AliasEntry, Catalogue
from gateway.catalog.intake import Intake
from gateway.catalog.repository import AdapterRepository
from gateway.catalog.service import CatalogService
from gateway.errors import InvalidRequest, ModelNotFound, ResourceNotFound
from gateway.identity.service import IdentityService
from tests.adapters.builders import BASE, config, lora, write_adapter

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def entry(name: str, version: int = 1, project: str = "prj_a") -> AdapterEntry:
    return AdapterEntry(
        id=f"adp_{project}_{name}_{version}",
        project=project,
        project_name=project.removeprefix("prj_"),
        name=name,
        version=version,
        adapter=AdapterRef(f"digest-{project}-{name}-{version}", 8),
        created=100 + version,
    )


@pytest.fixture
def catalogue() -> Catalogue:
    entries = [
        *(entry("support", 10), entry("support", 9), entry("json")),
        *(entry("support", 1, "prj_b"), entry("smol", 1, "prj_b")),
    ]
    return Catalogue(Bases([ServedBase("smol")]), 50, entries)


def test_a_name_alone_is_the_newest_version(catalogue):
    target = catalogue.resolve("prj_a", "support")
    assert target.adapter == AdapterRef("digest-prj_a-support-10", 8)
    assert (target.public_name, target.owner, target.created) == ("support", "a", 110)


def test_a_version_can_be_named(catalogue):
    target = catalogue.resolve("prj_a", "support@9")
    assert target.adapter_id == "adp_prj_a_support_9"
    assert target.public_name == "support@9"


def test_the_same_name_is_another_adapter_in_another_project(catalogue):
    assert catalogue.resolve("prj_b", "support").adapter.digest == "digest-prj_b-support-1"


@pytest.mark.parametrize("project", ["prj_a", "prj_b", "prj_new"])
def test_the_bases_name_is_reserved_in_every_project(catalogue, project):
    assert catalogue.resolve(project, "smol").adapter is None


@pytest.mark.parametrize(
    "name",
    ["json", "json@1", "nothing", "support@2", "support@", "support@01", "@1", "", "Support"],
)
def test_foreign_and_missing_names_are_the_same_refusal(catalogue, name):
    with pytest.raises(ModelNotFound) as refusal:
        catalogue.resolve("prj_b", name)
    assert refusal.value.body() == ModelNotFound(name).body()


def test_models_lists_the_base_and_the_projects_own(catalogue):
    def names(project: str) -> list[str]:
        return [target.public_name for target in catalogue.models(project)]

    assert names("prj_a") == ["smol", "json", "support"]
    assert names("prj_b") == ["smol", "support"]
    assert names("prj_new") == ["smol"]


def test_an_alias_is_listed_under_its_own_name_for_its_project_alone():
    aliases = [
        AliasEntry(project="prj_a", name="prod", adapter_id="adp_prj_a_support_9"),
        AliasEntry(project="prj_a", name="json", adapter_id="adp_prj_a_support_9"),
        AliasEntry(project="prj_b", name="gone", adapter_id="adp_prj_b_never_1"),
    ]
    catalogue = Catalogue(
        Bases([ServedBase("smol")]), 50, [entry("support", 9), entry("json")], aliases
    )
    listed = {target.public_name: target.adapter_id for target in catalogue.models("prj_a")}
    assert listed == {
        "smol": None,
        "prod": "adp_prj_a_support_9",
        "json": "adp_prj_a_support_9",  # an alias comes before a name
        "support": "adp_prj_a_support_9",
    }
    assert catalogue.resolve("prj_a", "prod").public_name == "prod"
    assert [target.public_name for target in catalogue.models("prj_b")] == ["smol"]
    with pytest.raises(ModelNotFound):
        catalogue.resolve("prj_b", "prod")


async def test_publishing_counts_versions_up_and_never_reuses_one(database):
    async with database.publish() as session:
        project = await IdentityService(session, NOW).create_project("acme")
        await session.flush()
        service = CatalogService(session, project.id, NOW)
        versions = []
        for digest in ("d1", "d2"):
            versions.append((await service.publish("support", AdapterRef(digest, 4))).version)
            await session.flush()
        await service.retire("support@2")
        versions.append((await service.publish("support", AdapterRef("d3", 4))).version)
        await session.flush()
        rows = await AdapterRepository(session, project.id).all()
        assert versions == [1, 2, 3]
        assert [(row.version, row.state) for row in rows] == [
            (1, "ready"),
            (2, "retired"),
            (3, "ready"),
        ]


async def test_a_tenants_repository_never_shows_anothers_rows(database):
    async with database.publish() as session:
        identity = IdentityService(session, NOW)
        mine = await identity.create_project("acme")
        theirs = await identity.create_project("globex")
        await session.flush()
        await CatalogService(session, theirs.id, NOW).publish("json", AdapterRef("d", 4))
        await session.flush()
        assert await AdapterRepository(session, mine.id).all() == []
        for reference in ("json", "json@1"):
            with pytest.raises(ResourceNotFound):
                await CatalogService(session, mine.id, NOW).retire(reference)


@pytest.mark.parametrize(
    "name", ["", "a/b", "a@1", "../x", "a b", "-a", "a" * 65, "é", "a\n", "a:b"]
)
async def test_names_that_could_be_read_otherwise_are_refused(database, name):
    with pytest.raises(InvalidRequest):
        async with database.publish() as session:
            await CatalogService(session, "prj_1", NOW).publish(name, AdapterRef("d", 4))


@pytest.fixture
def intake(tmp_path) -> Intake:
    from adapters.store import AdapterStore

    return Intake(BASE, AdapterStore(tmp_path / "store"))


def test_an_adapter_is_stored_under_its_digest(intake, tmp_path):
    adapter, facts = intake.admit(write_adapter(tmp_path / "mine"))
    assert adapter.rank == 4
    assert facts.nbytes > 0
    assert json.loads(facts.report)["digest"] == adapter.digest
    assert intake.store.exists(adapter.digest)


async def test_whoever_publishes_it_an_activated_adapter_is_invoked_by_its_tokens(
    intake, tmp_path, database
):
    """Served as plain LoRA it would answer wrongly, and say nothing of it."""
    adapter, facts = intake.admit(write_adapter(tmp_path, config(alora_invocation_tokens=[5, 6])))
    assert adapter.invocation == (5, 6)
    async with database.publish() as session:
        owner = await IdentityService(session, NOW).create_project("acme")
        row = await CatalogService(session, owner.id, NOW).publish("turns", adapter, facts)
        assert json.loads(row.invocation) == [5, 6]


def test_an_adapter_that_does_not_fit_is_refused_and_not_stored(intake, tmp_path):
    folder = write_adapter(tmp_path / "mine", config(r=4), lora(rank=4) | lora(layer=99))
    with pytest.raises(InvalidRequest, match="99"):
        intake.admit(folder)
    assert intake.store.digests() == []


def test_a_directory_that_is_not_there_is_named(intake, tmp_path):
    with pytest.raises(InvalidRequest, match="no such directory"):
        intake.admit(tmp_path / "nothing")
