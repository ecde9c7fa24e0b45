"""What nobody well-meaning sends: each a clear 4xx, and nothing is left behind."""

import asyncio
import hashlib
import io
import json
import pickle
import tarfile
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.adapter_api.callers import Caller
from gateway.adapter_api.publisher import Publisher
from gateway.catalog.models import UploadState
from gateway.catalog.repository import CatalogRepository
from tests.adapters.builders import config, encode, frame, lora, pack_file, write_adapter
from tests.gateway.adapter_world import World, adapter, opened

pytestmark = pytest.mark.slow

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HOSTILE = [
    "%00", "a%00b", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "a%0d%0ab",
    "%1b%5b31m", "%ff%fe", "%ed%a0%80", "%e2%80%ae", "a" * 3000, "@", "x@", "x@-1", "x@99999999999",
    "x@%d9%a3", "%F0%9F%92%A9", "*", "'%20OR%20'1'='1", "{}", "%7b%7b7*7%7d%7d",
]  # fmt: skip
PATHS = [
    ("GET", "/v1/adapters/{}"),
    ("DELETE", "/v1/adapters/{}?wait_s=0"),
    ("POST", "/v1/adapters/{}/retire"),
    ("PUT", "/v1/adapters/{}/pin"),
    ("POST", "/v1/adapters/{}/prefetch"),
    ("GET", "/v1/adapters/uploads/{}"),
    ("PUT", "/v1/adapters/uploads/{}/adapter_config.json/1"),
    ("POST", "/v1/adapters/uploads/{}/complete"),
    ("DELETE", "/v1/adapters/uploads/{}"),
    ("PUT", "/v1/adapters/aliases/{}"),
    ("POST", "/v1/adapters/aliases/{}/rollback"),
    ("DELETE", "/v1/adapters/aliases/{}"),
    ("GET", "/v1/adapters?tenant={}"),
]


ONE_DATABASE = pytest.mark.parametrize("backend", ["sqlite"])  # it has no part in the matter


@pytest.fixture
async def world(database, tmp_path):
    async with opened(database, tmp_path / "data") as found:
        yield found


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_no_path_makes_a_server_error(world, tmp_path):
    before = everything_below(tmp_path)
    for method, path in PATHS:
        for words in HOSTILE:
            body = {"version": "x"} if "aliases" in path and method == "PUT" else {}
            answer = await world.call(method, path.format(words), json=body)
            assert 400 <= answer.status_code < 500, (method, path, words, answer.text)
            assert answer.json()["error"]["message"]
    for text in ("\x00", "a\x00b"):
        version = {"version": text}
        answer = await world.call("PUT", "/v1/adapters/aliases/prod", json=version)
        assert 400 <= answer.status_code < 500, answer.text
    for words in HOSTILE:
        grant = f"/v1/adapters/{words}/grants/{words}"
        answer = await world.call("PUT", grant, "admin")
        assert 400 <= answer.status_code < 500, (grant, answer.text)
    assert everything_below(tmp_path) - before <= {"data/uploads"}


@ONE_DATABASE
@pytest.mark.parametrize("file", [*HOSTILE, "adapter_model.bin", "..%2fadapter_config.json"])
async def test_no_name_of_a_part_becomes_a_path(world, tmp_path, file):
    began = (await world.call("POST", "/v1/adapters/uploads", json={"name": "x"})).json()
    before = everything_below(tmp_path)
    for number in ("1", "0", "-1", "10001", "1e3", "%00", "9" * 40):
        path = f"/v1/adapters/uploads/{began['id']}/{file}/{number}"
        answer = await world.http.put(path, content=b"x", headers=world.auth())
        assert 400 <= answer.status_code < 500, (number, answer.text)
    assert everything_below(tmp_path) == before


TEXTS = [
    "", "\x00", "a\x00b", "\ud800", "\u202ex", "é", "a/b", "..", "a\r\nset-cookie: x", "x" * 65,
    "\x1b[31m", "uploads", "ａ",
]  # fmt: skip


@ONE_DATABASE
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
async def test_no_text_of_a_form_makes_a_server_error(world, text):
    for form in (
        {"name": text},
        {"name": "x", "alias": text},
        {"name": "x", "base_fingerprint": text * 90},
        {text: "x", "name": "x"},
        {"name": [text]},
    ):
        raw = json.dumps(form).encode()
        headers = world.auth() | {"content-type": "application/json"}
        answer = await world.http.post("/v1/adapters/uploads", content=raw, headers=headers)
        assert 400 <= answer.status_code < 500 or form.get("base_fingerprint") == "", (
            form, answer.text,
        )  # fmt: skip
    for method, path, form in (
        ("PUT", "/v1/adapters/aliases/prod", {"version": text}),
        ("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": text}),
        ("POST", "/v1/unload_lora_adapter", {"lora_name": text}),
    ):
        answer = await world.http.request(
            method, path, content=json.dumps(form).encode(),
            headers=world.auth("admin") | {"content-type": "application/json"},
        )  # fmt: skip
        assert 400 <= answer.status_code < 500, (path, answer.text)
    assert "\x1b" not in answer.text


def archives() -> dict[str, bytes]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../evil", b"x")
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w:gz") as archive:
        link = tarfile.TarInfo("adapter_model.safetensors")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return {
        "zip": packed.getvalue(),
        "tar": tarred.getvalue(),
        "pickle": pickle.dumps({"lora_A": [1.0]}),
        "torch": b"PK\x03\x04" + b"archive/data.pkl" * 9,
        "elf": b"\x7fELF" + bytes(64),
        "html": b"<html><script>alert(1)</script>",
        "empty": b"",
        "zeros": bytes(4096),
    }


def bombs() -> dict[str, bytes]:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    sound = pack_file(lora())
    entry = {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}
    twice = f'{{"a": {json.dumps(entry)}, "a": {json.dumps(entry)}}}'.encode()
    return {
        "a header longer than the file": (1 << 62).to_bytes(8, "little") + b"{}",
        "a header of megabytes": frame(b" " * (5 << 18) + b"{}", b""),
        "a padded header": frame(b"{}" + b" " * 4096, b""),
        "a deep header": frame(b"[" * 100_000, b""),
        "a number of many digits": frame(b'{"a": ' + b"9" * 9000 + b"}", b""),
        "a name given twice": frame(twice, bytes(4)),
        "many tensors": frame(
            json.dumps({str(i): {**entry, "data_offsets": [0, 0]} for i in range(17_000)}).encode(),
            b"",
        ),
        "overlapping tensors": frame(
            json.dumps({name.format("A"): entry, name.format("B"): entry}).encode(), bytes(4)
        ),
        "bytes behind the last tensor": sound + b"x",
        "a name with control characters": pack_file(
            {"\x1b[31m\u202e\x00" + name.format("A"): encode_of((4, 24))}
        ),
        "an enormous shape": frame(
            json.dumps({name.format("A"): {**entry, "shape": [1 << 40, 1 << 40]}}).encode(), b""
        ),
    }  # fmt: skip


def encode_of(shape: tuple[int, int]) -> tuple[str, tuple[int, ...], bytes]:
    import numpy as np

    return encode(np.ones(shape))


@ONE_DATABASE
@pytest.mark.parametrize("kind", [*archives(), *bombs()])
async def test_files_that_are_something_else_are_refused_with_a_reason(world, tmp_path, kind):
    data = (archives() | bombs())[kind]
    folder = write_adapter(tmp_path / "a", config(), data)
    answer = await world.push("support", folder)
    assert answer.status_code in (400, 413, 422), answer.text
    error = answer.json()["error"]
    assert any(WEIGHTS in problem for problem in error.get("problems", [error["message"]]))
    assert "\x1b" not in answer.text
    assert "\u202e" not in answer.text
    assert world.leftovers == []
    assert not list((world.root / "store").glob("sha256/*"))


@ONE_DATABASE
@pytest.mark.parametrize(
    "settings",
    [
        config(r=10**9), config(r=10**400), config(r=-1), config(lora_alpha=1e308),
        config(target_modules="(a+)+$" * 50), config(rank_pattern={"(.*)*b": 4}),
        config(base_model_name_or_path="\x1b[31m\u202eevil"),
        config(target_modules=["../../etc/passwd"]), config(peft_type="\x00"),
        config(rank_pattern={str(i): 1 for i in range(5000)}),
        b'{"r": 1, "r": 2}', b"{" * 50_000, b"\xff\xfe", b"null", b'{"r": NaN}',
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
async def test_configs_that_are_traps_are_refused_or_shown_safely(world, tmp_path, settings):
    answer = await asyncio.wait_for(
        world.push("support", write_adapter(tmp_path / "a", settings), force="true"), 20
    )
    assert answer.status_code in (201, 400, 413, 422), answer.text
    assert "\x1b" not in answer.text
    assert "\\u001b" not in answer.text
    assert "\u202e" not in answer.text
    assert world.leftovers == []


@ONE_DATABASE
async def test_an_operators_directory_with_symbolic_links_is_refused(world, tmp_path):
    sound = adapter(tmp_path / "sound")
    for file in (CONFIG, WEIGHTS):
        folder = adapter(tmp_path / f"linked-{file}")
        (folder / file).unlink()
        (folder / file).symlink_to(sound / file)
        body = {"lora_name": "x", "lora_path": str(folder)}
        answer = await world.call("POST", "/v1/load_lora_adapter", "admin", json=body)
        assert (answer.status_code, "symbolic link" in answer.text) == (422, True)
    assert not list((world.root / "store").glob("sha256/*"))


async def begun(world: World, folder: Path, name: str = "support") -> str:
    """An upload with all its parts there."""
    upload = (await world.call("POST", "/v1/adapters/uploads", json={"name": name})).json()["id"]
    for name in (CONFIG, WEIGHTS):
        path, data = f"/v1/adapters/uploads/{upload}/{name}/1", (folder / name).read_bytes()
        sums = {"x-content-sha256": hashlib.sha256(data).hexdigest()}
        answer = await world.http.put(path, content=data, headers=world.auth() | sums)
        assert answer.status_code == 200
    return str(upload)


async def test_of_completions_and_deletions_at_once_each_is_told_what_happened(world, tmp_path):
    for turn in range(6):
        upload = await begun(world, adapter(tmp_path / str(turn), turn), f"a{turn}")
        path = f"/v1/adapters/uploads/{upload}"
        calls = [("POST", f"{path}/complete"), ("DELETE", path), ("POST", f"{path}/complete")]
        answers = await asyncio.gather(
            *(world.call(method, at, json={}) for method, at in calls[turn % 2 :])
        )
        codes = [answer.status_code for answer in answers]
        assert set(codes) <= {200, 204, 404, 409}, [answer.text for answer in answers]
        assert codes.count(200) <= 1
        published = (await world.call("GET", f"/v1/adapters/a{turn}")).status_code == 200
        assert published == (200 in codes)
        assert published or 204 in codes  # given up before it was taken up
        assert world.leftovers == []


async def test_gateways_that_publish_one_name_at_once_take_numbers_of_their_own(world, tmp_path):
    uploads = [await begun(world, adapter(tmp_path / str(i), i), "sql") for i in range(4)]
    async with world.database.unit_of_work() as session:
        rows = [
            row
            for row in await CatalogRepository(session).uploads(
                UploadState.UPLOADING, datetime.now(UTC) + timedelta(hours=1)
            )
            if row.id in uploads
        ]
    assert len(rows) == 4
    one = world.publisher
    others = [
        Publisher(one.database, one.staging, one._store, one._bases, one._canary, quota=one.quota)
        for _ in rows
    ]
    who = Caller(world.live.authenticate(world.keys["acme"]), rows[0].project_id)
    accepted = await asyncio.gather(
        *(each.finish(row, who, {}) for each, row in zip(others, rows, strict=True))
    )
    assert sorted(each.adapter.version for each in accepted) == [1, 2, 3, 4]
    assert world.leftovers == []


async def test_of_retirements_at_once_one_is_done_and_the_rest_find_nothing(world, tmp_path):
    folder = adapter(tmp_path / "a")
    for turn in range(2):
        await world.push("mine", folder)
        body = {"lora_name": "theirs", "lora_path": str(folder)}
        assert (await world.call("POST", "/v1/load_lora_adapter", "admin", json=body)).is_success
        for method, path, who in (
            ("DELETE", "/v1/adapters/mine?wait_s=0", "acme"),
            ("POST", "/v1/unload_lora_adapter", "admin"),
        ):
            form = {"lora_name": "theirs"}
            answers = await asyncio.gather(
                *(world.call(method, path, who, json=form) for _ in range(3))
            )
            codes = sorted(answer.status_code for answer in answers)
            assert codes == [200, 404, 404], (turn, path)


async def test_an_alias_never_leads_to_what_is_retired_at_the_same_time(world, tmp_path):
    for turn in range(3):
        await world.push("sql", adapter(tmp_path / str(turn), turn))
        reference = {"version": f"sql@{turn + 1}"}
        moved, retired = await asyncio.gather(
            world.call("PUT", "/v1/adapters/aliases/prod", json=reference),
            world.call("DELETE", f"/v1/adapters/sql@{turn + 1}?wait_s=0"),
        )
        assert {moved.status_code, retired.status_code} in ({200, 409}, {200, 404})
        assert (moved.status_code == 200) == (retired.status_code == 409)


@ONE_DATABASE
async def test_parts_that_come_while_the_upload_is_deleted_are_refused(world, tmp_path):
    folder = adapter(tmp_path / "a")
    upload = await begun(world, folder)
    path = f"/v1/adapters/uploads/{upload}"
    started, gone = asyncio.Event(), asyncio.Event()

    async def slowly():
        yield b"{"
        started.set()
        await gone.wait()
        yield b"}"

    sending = asyncio.create_task(
        world.http.put(f"{path}/{CONFIG}/1", content=slowly(), headers=world.auth())
    )
    await asyncio.wait_for(started.wait(), 5)
    assert (await world.call("DELETE", path)).status_code == 204
    gone.set()
    assert (await sending).status_code == 404
    assert world.leftovers == []


@ONE_DATABASE
async def test_parts_at_once_cannot_exceed_the_limit(database, tmp_path):
    async with opened(database, tmp_path / "data", max_bytes=10_000) as world:
        upload = (await world.call("POST", "/v1/adapters/uploads", json={"name": "a"})).json()["id"]
        path = f"/v1/adapters/uploads/{upload}/{WEIGHTS}"
        answers = await asyncio.gather(
            *(
                world.http.put(f"{path}/{i}", content=bytes(4000), headers=world.auth())
                for i in range(1, 9)
            )
        )
        assert {answer.status_code for answer in answers} <= {200, 413}
        status = (await world.call("GET", f"/v1/adapters/uploads/{upload}")).json()
        assert status["bytes_received"] <= 10_000
        assert (await world.call("DELETE", f"/v1/adapters/uploads/{upload}")).status_code == 204
        assert world.leftovers == []
