"""An adapter's life over HTTP: uploaded, refused or published, aliased, granted, retired."""

import asyncio
import hashlib
import os
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import inspect, select

from adapters.store import AdapterStore
from gateway.adapter_api import staging as staging_module
from gateway.adapter_api import uploads as uploads_module
from gateway.audit.models import AuditEvent
from gateway.catalog.repository import CatalogRepository
from tests.gateway.adapter_world import adapter, opened

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(database, tmp_path):
    async with opened(database, tmp_path / "data") as found:
        yield found


async def test_one_multipart_request_publishes_a_version_with_its_report(world, tmp_path):
    answer = await world.push("support", adapter(tmp_path / "a"), alias="prod")
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert (told["model"], told["rank"], told["state"]) == ("support@1", 4, "ready")
    report = told["report"]
    assert [module["rank"] for module in report["modules"]] == [4, 4]
    assert {module["scale"] for module in report["modules"]} == {2.0}
    assert report["nbytes"] == told["bytes"] > 0
    assert report["unmatched"] == []
    assert await world.meaning("support") == await world.meaning("prod") == told["digest"]
    assert world.leftovers == []
    one = (await world.call("GET", "/v1/adapters/support@1")).json()
    assert one["report"] == report


async def test_parts_may_come_again_and_in_any_order(world, tmp_path):
    folder = adapter(tmp_path / "a")
    began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "support"})).json()
    path = f"/v1/adapters/uploads/{began['id']}"
    weights = (folder / "adapter_model.safetensors").read_bytes()
    settings = (folder / "adapter_config.json").read_bytes()
    half = len(weights) // 2
    for file, number, data in (
        ("adapter_model.safetensors", 2, weights[half:]),
        ("adapter_config.json", 1, settings),
        ("adapter_model.safetensors", 1, b"cut short"),
        ("adapter_model.safetensors", 1, weights[:half]),
    ):
        sums = {"x-content-sha256": hashlib.sha256(data).hexdigest()}
        answer = await world.http.put(
            f"{path}/{file}/{number}", content=data, headers=world.auth() | sums
        )
        assert answer.status_code == 200, answer.text
    status = (await world.call("GET", path)).json()
    assert status["bytes_received"] == len(weights) + len(settings)
    assert [part["part"] for part in status["files"]["adapter_model.safetensors"]] == [1, 2]
    whole = {"adapter_model.safetensors": hashlib.sha256(weights).hexdigest()}
    done = await world.call("POST", f"{path}/complete", json={"sha256": whole})
    assert done.status_code == 200, done.text
    assert (await world.call("GET", path)).json()["state"] == "ready"
    assert (await world.call("POST", f"{path}/complete", json={})).status_code == 409
    assert world.leftovers == []


async def test_a_part_that_does_not_hash_to_what_was_said_is_not_kept(world):
    began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "x"})).json()
    path = f"/v1/adapters/uploads/{began['id']}"
    answer = await world.http.put(
        f"{path}/adapter_config.json/1",
        content=b"{}",
        headers=world.auth() | {"x-content-sha256": "0" * 64},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "checksum_mismatch")
    assert (await world.call("GET", path)).json()["files"] == {}
    answer = await world.call("POST", f"{path}/complete", json={})
    assert answer.status_code == 400
    assert "adapter_config.json: part 1 is missing" in answer.text
    assert (await world.call("GET", path)).json()["state"] == "failed"


async def test_a_refused_adapter_says_everything_and_leaves_nothing(world, tmp_path):
    folder = adapter(tmp_path / "a", r=9, lora_alpha="x")
    answer = await world.push("support", folder)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "adapter_invalid"
    assert any("lora_alpha" in problem for problem in error["problems"])
    assert world.leftovers == []
    assert (await world.call("GET", "/v1/adapters")).json()["data"] == []


async def test_another_base_is_a_conflict_unless_forced(world, tmp_path):
    folder = adapter(tmp_path / "a", base_model_name_or_path="some/other")
    answer = await world.push("support", folder)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "base_mismatch")
    answer = await world.push("support", folder, force="true")
    assert answer.status_code == 201
    assert any("some/other" in text for text in answer.json()["report"]["warnings"])


async def test_an_alias_switches_shares_and_rolls_back(world, tmp_path):
    digests = []
    for seed in (1, 2):
        answer = await world.push("support", adapter(tmp_path / str(seed), seed))
        digests.append(answer.json()["digest"])
    path = "/v1/adapters/aliases/prod"
    await world.call("PUT", path, json={"version": "support@1"})
    assert await world.meaning("prod") == digests[0]
    canary = {"version": "support@2", "percent": 30}
    await world.call("PUT", path, json={"version": "support@1", "canary": canary})
    found = [await world.meaning("prod", subject=f"user-{i}") for i in range(300)]
    assert 60 <= found.count(digests[1]) <= 120
    assert [await world.meaning("prod", subject=f"user-{i}") for i in range(300)] == found
    await world.call("PUT", path, json={"version": "support@2"})
    assert {await world.meaning("prod", subject=f"user-{i}") for i in range(9)} == {digests[1]}
    back = (await world.call("POST", f"{path}/rollback")).json()
    assert (back["version"], back["previous"]) == ("support@1", "support@2")
    assert await world.meaning("prod") == digests[0]
    refused = await world.call("DELETE", "/v1/adapters/support@1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


@pytest.mark.parametrize("sent", [{"data": {"{": "x"}}, {"content": '{"version": "a@1"}'}])
async def test_a_body_that_is_not_sent_as_json_is_told_how_it_should_be(world, sent):
    """As curl's -d sends it, and as who names no type."""
    answer = await world.call("PUT", "/v1/adapters/aliases/prod", **sent)
    assert answer.status_code == 400
    assert "content-type application/json, not " in answer.json()["error"]["message"]


async def test_every_change_of_an_adapter_is_in_the_audit_log(world, tmp_path, database):
    await world.push("support", adapter(tmp_path / "a"), alias="prod")
    await world.push("support", adapter(tmp_path / "b", 2))
    began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "other"})).json()
    alias = "/v1/adapters/aliases/prod"
    for method, path, body in (
        ("PUT", alias, {"version": "support@2"}),
        ("POST", f"{alias}/rollback", None),
        ("DELETE", alias, None),
        ("PUT", "/v1/adapters/support@2/pin", None),
        ("POST", "/v1/adapters/support@1/retire", None),
        ("DELETE", "/v1/adapters/support@2?wait_s=0", None),
        ("DELETE", f"/v1/adapters/uploads/{began['id']}", None),
    ):
        answer = await world.call(method, path, **({"json": body} if body else {}))
        assert answer.status_code < 300, answer.text
    refused = await world.call("DELETE", "/v1/adapters/absent")
    assert refused.status_code == 404
    async with database.reading() as session:
        rows = (await session.scalars(select(AuditEvent).order_by(AuditEvent.number))).all()
    mine = [row for row in rows if row.type.startswith("adapter")]
    assert [row.type for row in mine] == [
        "adapter_upload.created", "adapter.created", "adapter_alias.updated",
        "adapter_upload.created", "adapter.created", "adapter_upload.created",
        "adapter_alias.updated", "adapter_alias.updated", "adapter_alias.deleted",
        "adapter.updated", "adapter.retired", "adapter.deleted", "adapter_upload.deleted",
    ]  # fmt: skip
    assert {row.actor_type for row in mine} == {"api_key"}
    assert len({row.project_id for row in mine}) == 1
    assert mine[1].change["name"] == "support"
    assert mine[1].change["version"] == 1
    assert all(b.previous == a.hash for a, b in pairwise(rows))


async def test_grants_and_quotas_are_in_the_audit_log(world, tmp_path, database):
    await world.push("shared", adapter(tmp_path / "a"), "admin")
    grant = "/v1/adapters/shared/grants/globex"
    for method, path, body in (
        ("PUT", grant, {}),
        ("DELETE", grant, {}),
        ("PUT", "/v1/adapters/quota?tenant=acme", {"max_adapters": 3, "max_bytes": 9}),
    ):
        answer = await world.call(method, path, "admin", json=body)
        assert answer.status_code < 300, answer.text
    async with database.reading() as session:
        found = (await session.scalars(select(AuditEvent.type).order_by(AuditEvent.number))).all()
    assert [kind for kind in found if kind.startswith(("adapter_grant", "adapter_quota"))] == [
        "adapter_grant.created", "adapter_grant.deleted", "adapter_quota.updated"
    ]  # fmt: skip


async def test_what_is_anothers_is_what_does_not_exist(world, tmp_path):
    began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "x"})).json()["id"]
    await world.push("support", adapter(tmp_path / "a"))
    for method, path, body in (
        ("GET", "/v1/adapters/{}", None),
        ("DELETE", "/v1/adapters/{}", None),
        ("PUT", "/v1/adapters/{}/pin", None),
        ("POST", "/v1/adapters/{}/prefetch", None),
        ("PUT", "/v1/adapters/aliases/a", {"version": "{}"}),
    ):
        told = []
        for name in ("support", "absent0"):
            filled = {"version": name} if body else None
            answer = await world.call(method, path.format(name), "globex", json=filled)
            told.append((answer.status_code, answer.text.replace(name, "?")))
        assert told[0] == told[1]
        assert told[0][0] == 404
    for upload in (began, "upl_" + "0" * 32, "..%2f..", "x"):
        answer = await world.call("GET", f"/v1/adapters/uploads/{upload}", "globex")
        assert answer.status_code == 404
    other = await world.call("GET", "/v1/adapters?tenant=acme", "globex")
    assert other.status_code == 404


async def test_an_admin_key_does_what_its_role_may(world, tmp_path):
    listed = await world.call("GET", "/v1/adapters?tenant=acme", "viewer")
    assert listed.status_code == 200
    assert (await world.push("mine", adapter(tmp_path / "a"), "viewer")).status_code == 403
    body = {"lora_name": "mine", "lora_path": "/nowhere"}
    for method, path in (
        ("DELETE", "/v1/adapters/mine"),
        ("PUT", "/v1/adapters/mine/grants/acme"),
        ("PUT", "/v1/adapters/quota"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
    ):
        answer = await world.call(method, path, "viewer", json=body | {"max_adapters": 1})
        assert answer.status_code == 403, (method, path, answer.text)


async def test_nothing_is_published_under_the_bases_name_where_nobody_could_reach_it(
    world, tmp_path
):
    base = world.publisher.served.first
    folder = adapter(tmp_path / "a")
    assert (await world.push("bot", folder)).status_code == 201
    for answer, param in (
        (await world.push(base, folder), "name"),
        (await world.push("other", folder, alias=base), "alias"),
        (await world.call("POST", "/v1/adapters/uploads", json={"name": base}), "name"),
        (
            await world.call("PUT", f"/v1/adapters/aliases/{base}", json={"version": "bot@1"}),
            "alias",
        ),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), error
        assert "own name" in error["message"]


async def test_a_form_in_another_encoding_is_refused_before_it_is_read(world, tmp_path):
    files = [("f", (name, b"x")) for name in ("adapter_config.json", "adapter_model.safetensors")]
    headers = world.auth() | {"content-encoding": "gzip"}
    answer = await world.http.post(
        "/v1/adapters", data={"name": "bot"}, files=files, headers=headers
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_a_key_for_some_models_cannot_make_itself_others(world, tmp_path):
    await world.push("bot", adapter(tmp_path / "a"))
    await world.push("other", adapter(tmp_path / "b", 1))
    alias = {"version": "other@1"}
    for method, path in (
        ("GET", "/v1/adapters"),
        ("GET", "/v1/adapters/other"),
        ("PUT", "/v1/adapters/aliases/bot2"),
        ("POST", "/v1/adapters/bot/retire"),
        ("DELETE", "/v1/adapters/other"),
        ("POST", "/v1/adapters/uploads"),
    ):
        answer = await world.call(method, path, "acme narrow", json=alias | {"adapter": "bot"})
        assert answer.status_code == 403, (method, path, answer.text)
        assert "for some models alone" in answer.json()["error"]["message"]
    assert (await world.push("bot", adapter(tmp_path / "c", 2), "acme narrow")).status_code == 403
    for name in ("bot", "other"):
        found = (await world.call("GET", f"/v1/adapters/{name}")).json()
        assert [each["version"] for each in found["versions"]] == [1]


async def test_an_operators_adapter_is_granted_to_chosen_tenants(world, tmp_path):
    await world.push("shared", adapter(tmp_path / "a"), "admin")
    grant = "/v1/adapters/shared/grants/globex"
    assert (await world.call("PUT", grant, "acme")).status_code == 403
    assert (await world.call("PUT", grant, "admin")).status_code == 200
    assert await world.meaning("shared", "globex")
    for name in ("shared", "shared@1"):  # it is used, not named: a grant that ends leaves nothing
        moved = await world.call(
            "PUT", "/v1/adapters/aliases/prod", "globex", json={"version": name}
        )
        assert moved.status_code == 404
    with pytest.raises(Exception, match="does not exist"):
        await world.meaning("shared", "acme")
    assert (await world.call("DELETE", grant, "admin")).status_code == 204
    with pytest.raises(Exception, match="does not exist"):
        await world.meaning("shared", "globex")
    mine = await world.call("GET", "/v1/adapters?tenant=acme", "admin")
    assert mine.json()["data"] == []


async def test_deleting_waits_for_what_runs_and_the_store_is_cleared_later(world, tmp_path):
    told = (await world.push("support", adapter(tmp_path / "a"))).json()
    with world.residents.using(told["id"]):
        answer = await world.call("DELETE", "/v1/adapters/support?wait_s=0.1")
        assert (answer.status_code, answer.json()["running"]) == (202, 1)
    store = AdapterStore(world.root / "store")
    assert store.exists(told["digest"])
    await world.sweep.once(datetime.now(UTC) + timedelta(days=1))
    assert store.exists(told["digest"])  # put just now
    old = datetime.now().timestamp() - 9000
    os.utime(store.path(told["digest"]), (old, old))
    await world.sweep.once()
    assert store.exists(told["digest"])  # requests from before may still run
    await world.sweep.once(datetime.now(UTC) + timedelta(hours=1))
    assert not store.exists(told["digest"])


async def test_the_store_keeps_what_another_version_names(world, tmp_path):
    folder = adapter(tmp_path / "a")
    told = (await world.push("support", folder)).json()
    await world.push("twin", folder, "globex")
    await world.call("DELETE", "/v1/adapters/support")
    store = AdapterStore(world.root / "store")
    os.utime(store.path(told["digest"]), (1, 1))
    await world.sweep.once(datetime.now(UTC) + timedelta(days=2))
    assert store.exists(told["digest"])


async def test_the_sweep_clears_what_a_killed_process_left(world):
    mine = (await world.call("POST", "/v1/adapters/uploads", json={"name": "a"})).json()["id"]
    uploads = world.root / "uploads"
    lost, young = uploads / f"upl_{'0' * 32}", uploads / f"upl_{'1' * 32}"
    grave, other = uploads / "gone-x", uploads / "somebody's"
    for folder in (lost, young, grave, other):
        folder.mkdir()
        (folder / "adapter_config.json.1").write_bytes(b"{}")
    for folder in (lost, grave, other, uploads / mine):
        os.utime(folder, (1, 1))
    await world.sweep.once()
    assert set(uploads.iterdir()) == {young, other, uploads / mine}


async def test_quotas_of_count_and_bytes_hold(database, tmp_path):
    async with opened(database, tmp_path / "data", adapters=2) as world:
        for name in ("a", "b"):
            await world.push(name, adapter(tmp_path / name, ord(name)))
        answer = await world.push("c", adapter(tmp_path / "c"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            403, "adapter_quota_exceeded",
        )  # fmt: skip
        quota = "/v1/adapters/quota"
        wanted = {"max_adapters": 9, "max_bytes": 4000}
        assert (await world.call("PUT", quota, "acme", json=wanted)).status_code == 403
        answer = await world.call("PUT", f"{quota}?tenant=acme", "admin", json=wanted)
        assert answer.json()["adapters"] == 2
        answer = await world.push("c", adapter(tmp_path / "d", 9))
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "insufficient_quota")
        assert world.leftovers == []


async def test_bytes_on_their_way_count_as_kept_ones_do(world, monkeypatch):
    """Else whoever may keep little could fill the disk with uploads that never end."""
    monkeypatch.setattr(uploads_module, "HEADERS", 0)
    wanted = {"max_adapters": 20, "max_bytes": 4000}
    await world.call("PUT", "/v1/adapters/quota?tenant=acme", "admin", json=wanted)
    paths = []
    for name in ("a", "b", "c"):
        began = (await world.call("POST", "/v1/adapters/uploads", json={"name": name})).json()
        paths.append(f"/v1/adapters/uploads/{began['id']}")

    async def send(path: str, part: int, nbytes: int) -> int:
        place = f"{path}/adapter_model.safetensors/{part}"
        return (await world.call("PUT", place, content=b"x" * nbytes)).status_code

    first, second, third = paths
    assert await send(first, 1, 3000) == 200
    assert [await send(second, 1, 1001), await send(second, 1, 1000)] == [413, 200]
    assert [await send(first, 1, 3000), await send(first, 2, 1)] == [200, 413]  # again, and more
    full = await world.call("PUT", f"{third}/adapter_config.json/1", content=b"{}")
    assert (full.status_code, full.json()["error"]["code"]) == (403, "adapter_quota_exceeded")
    assert (await world.call("DELETE", first)).status_code == 204
    assert await send(third, 1, 3000) == 200


async def test_so_many_uploads_are_on_their_way_at_most(database, tmp_path):
    async with opened(database, tmp_path / "data", adapters=90) as world:
        codes = [
            (await world.call("POST", "/v1/adapters/uploads", json={"name": "a"})).status_code
            for _ in range(33)
        ]
        assert codes == [201] * 32 + [403]


async def test_reports_are_read_by_who_asks_for_one_alone(world, tmp_path):
    """They are long, and every gateway reads all versions whenever anything changes."""
    await world.push("a", adapter(tmp_path / "a"))
    async with world.database.reading() as session:
        (row,) = await CatalogRepository(session).ready()
        assert "report" in inspect(row).unloaded
    one = (await world.call("GET", "/v1/adapters/a@1")).json()
    assert one["report"]["modules"]


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "a\u0000b", "é", "", "uploads", "a" * 65, "x\n", "a@1", ".."]
)
async def test_names_that_could_be_read_otherwise_are_refused(world, tmp_path, name):
    answer = await world.push(name, adapter(tmp_path / "a"))
    assert answer.status_code == 400
    answer = await world.call("POST", "/v1/adapters/uploads", json={"name": name})
    assert answer.status_code == 400
    assert world.leftovers == []


@pytest.mark.parametrize(
    "file", ["../adapter_config.json", "adapter_model.bin", "model.zip", "x.safetensors", "a\u0000"]
)
async def test_only_the_two_files_are_taken(world, tmp_path, file):
    files = [("files", ("adapter_config.json", b"{}")), ("files", (file, b"x"))]
    answer = await world.call("POST", "/v1/adapters", files=files, data={"name": "x"})
    assert answer.status_code == 400
    began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "x"})).json()["id"]
    quoted = file.replace("/", "%2F").replace("\u0000", "%00")
    answer = await world.call("PUT", f"/v1/adapters/uploads/{began}/{quoted}/1", content=b"x")
    assert answer.status_code in (400, 404)
    assert not list(world.root.rglob("*zip"))


async def test_more_bytes_than_allowed_are_refused_while_they_arrive(database, tmp_path):
    async with opened(database, tmp_path / "data", max_bytes=2000) as world:
        began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "x"})).json()["id"]
        path = f"/v1/adapters/uploads/{began}/adapter_model.safetensors"
        assert (await world.call("PUT", f"{path}/1", content=b"x" * 1500)).status_code == 200
        assert (await world.call("PUT", f"{path}/2", content=b"x" * 600)).status_code == 413
        assert (await world.call("PUT", f"{path}/1", content=b"x" * 1900)).status_code == 200
        assert (await world.call("PUT", f"{path}/0", content=b"x")).status_code == 400
        assert (await world.call("DELETE", f"/v1/adapters/uploads/{began}")).status_code == 204
        assert world.leftovers == []
        answer = await world.call("PUT", f"{path}/1", content=b"x")
        assert answer.status_code == 404


async def test_concurrent_uploads_of_one_name_get_versions_of_their_own(world, tmp_path):
    folders = [adapter(tmp_path / str(seed), seed) for seed in range(4)]
    answers = await asyncio.gather(*(world.push("support", folder) for folder in folders))
    assert sorted(answer.json()["version"] for answer in answers) == [1, 2, 3, 4]
    assert world.leftovers == []


async def test_pinned_adapters_are_known_to_the_snapshot(world, tmp_path):
    told = (await world.push("support", adapter(tmp_path / "a"))).json()
    await world.call("PUT", "/v1/adapters/support/pin")
    await world.live.refresh()
    assert {ref.digest for _, ref in world.live.pinned} == {told["digest"]}
    await world.call("DELETE", "/v1/adapters/support/pin")
    await world.live.refresh()
    assert world.live.pinned == frozenset()


async def test_vllms_routes_publish_for_every_tenant(world, tmp_path):
    folder = adapter(tmp_path / "a")
    body = {"lora_name": "sql", "lora_path": str(folder)}
    assert (await world.call("POST", "/v1/load_lora_adapter", json=body)).status_code == 403
    answer = await world.call("POST", "/v1/load_lora_adapter", "admin", json=body)
    assert (answer.status_code, "added successfully" in answer.text) == (200, True)
    assert await world.meaning("sql", "acme") == await world.meaning("sql", "globex")
    again = await world.call("POST", "/v1/load_lora_adapter", "admin", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (400, "adapter_loaded")
    assert "has already been loaded" in again.json()["error"]["message"]  # sidecars look for it
    before = await world.meaning("sql")
    body = {**body, "lora_path": str(adapter(tmp_path / "b", 1)), "load_inplace": True}
    assert (await world.call("POST", "/v1/load_lora_adapter", "admin", json=body)).is_success
    assert await world.meaning("sql") not in (before, None)
    for status in (200, 404):
        gone = await world.call(
            "POST", "/v1/unload_lora_adapter", "admin", json={"lora_name": "sql"}
        )
        assert gone.status_code == status


async def test_the_description_lists_the_routes(world):
    document = (await world.http.get("/openapi.json")).json()
    assert "/v1/adapters/uploads/{upload}/{file}/{part}" in document["paths"]
    assert document["paths"]["/v1/adapters"]["post"]["security"]


@pytest.mark.parametrize("key", ["", "sk-live-nonsense"])
async def test_without_a_key_nothing_is_told(world, key):
    answer = await world.http.get("/v1/adapters", headers={"authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_a_part_is_at_most_what_memory_should_hold():
    assert staging_module.MAX_PART_BYTES <= 64 << 20
