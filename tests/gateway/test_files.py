"""Files over the official client: taken within limits, kept for a while, whole or not at all."""

import os
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from openai import APIStatusError, NotFoundError

from gateway.files.store import FileStore
from gateway.files.sweep import SETTLED_S, FileSweep
from tests.fakes.clock import until
from tests.gateway.batching import batching, line
from tests.services import BOTH, sqlite_unless_both

backend = sqlite_unless_both


@pytest.fixture
async def desk(database, tmp_path):
    limits = {"max_file_bytes": 4000, "files_per_tenant": 3, "file_bytes_per_tenant": 9000}
    async with batching(database, tmp_path, running=False, **limits) as found:
        yield found


async def test_a_file_comes_back_as_it_was_sent_until_it_is_deleted(desk):
    client, data = desk.client(), bytes(range(256)) * 9
    sent = await client.files.create(file=("häß.jsonl", data), purpose="batch")
    assert (sent.bytes, sent.filename, sent.purpose) == (len(data), "häß.jsonl", "batch")
    assert (sent.object, sent.status) == ("file", "processed")
    assert sent.expires_at - sent.created_at == 30 * 86400
    assert (await client.files.retrieve(sent.id)) == sent
    assert (await client.files.content(sent.id)).content == data
    gone = await client.files.delete(sent.id)
    assert (gone.id, gone.deleted) == (sent.id, True)
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(NotFoundError):
            await call(sent.id)
    assert list(desk.settings.file_dir.iterdir()) == []


@BOTH
async def test_lists_are_ordered_filtered_and_paged(desk):
    client = desk.client()
    made = [
        (await client.files.create(file=(f"{n}", b"x"), purpose=purpose)).id
        for n, purpose in enumerate(("batch", "user_data", "batch"))
    ]
    assert [row.id async for row in client.files.list(limit=1)] == made[::-1]
    assert [row.id async for row in client.files.list(order="asc", limit=2)] == made
    assert [row.id async for row in client.files.list(purpose="user_data")] == [made[1]]
    assert (await client.files.list(after=made[1])).data[0].id == made[0]


async def test_what_may_not_be_is_refused_with_its_field(desk):
    auth = {"authorization": f"Bearer {desk.keys['acme']}"}
    transport = httpx2.ASGITransport(desk.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:

        async def push(data: dict[str, str], **files: tuple[str, bytes]) -> tuple[int, str | None]:
            answer = await http.post("/v1/files", headers=auth, data=data, files=files)
            return answer.status_code, answer.json()["error"]["param"]

        one = ("a.jsonl", b"{}")
        lasting = {"purpose": "batch", "expires_after[anchor]": "created_at"}
        assert await push({"purpose": "batch"}, other=one) == (400, "file")
        assert await push({"purpose": "batch"}, file=("a", b"")) == (400, "file")
        assert await push({"purpose": "batch"}, file=("a", b"x" * 4001)) == (413, "file")
        assert await push({"purpose": "batch"}, file=("a" * 256, b"x")) == (400, "file")
        assert await push({"purpose": "vision"}, file=one) == (400, "purpose")
        assert await push({"x": "y"}, file=one) == (400, "purpose")
        seconds = "expires_after[seconds]"
        assert await push(lasting, file=one) == (400, seconds)
        assert await push({**lasting, seconds: "59"}, file=one) == (400, seconds)
        for odd in ("x", "9" * 5000, "\uff13\uff16\uff10\uff10", "-3600", "3600.0"):
            assert await push({**lasting, seconds: odd}, file=one) == (400, seconds)
        plain = await http.post("/v1/files", headers=auth, json={"purpose": "batch"})
        assert plain.status_code == 415
        for query in ("limit=0", "after=zz", "after=batch_" + "0" * 32, "after=file-" + "g" * 32):
            assert (await http.get(f"/v1/files?{query}", headers=auth)).status_code == 400
        text = await http.post("/v1/files", headers=auth, files={
            "purpose": (None, "batch"), "file": (None, "no filename")})  # fmt: skip
        assert (text.status_code, text.json()["error"]["param"]) == (400, "file")
        assert "a text field" in text.json()["error"]["message"]
        huge = await http.post("/v1/files", headers=auth, data={"purpose": "batch"},
                               files={"file": ("a", b"x" * (2 << 20))})  # fmt: skip
        assert huge.status_code == 413
    assert not desk.settings.file_dir.exists()


@BOTH
async def test_a_project_keeps_so_many_files_and_bytes_and_no_more(desk):
    client = desk.client()
    for _ in range(2):
        await client.files.create(file=("a", b"x" * 4000), purpose="batch")
    with pytest.raises(APIStatusError) as refused:
        await client.files.create(file=("a", b"x" * 1001), purpose="batch")
    assert (refused.value.status_code, refused.value.code) == (403, "file_quota_exceeded")
    await client.files.create(file=("a", b"x" * 1000), purpose="batch")
    with pytest.raises(APIStatusError):
        await client.files.create(file=("a", b"x"), purpose="batch")
    await desk.client("globex").files.create(file=("a", b"x"), purpose="batch")
    assert len(list(desk.settings.file_dir.iterdir())) == 4


@BOTH
async def test_a_file_goes_when_its_time_is_over_but_not_while_a_batch_reads_it(desk):
    client = desk.client()
    kept = {"expires_after": {"anchor": "created_at", "seconds": 3600}}
    short = await client.files.create(file=("a", b"x"), purpose="batch", **kept)
    assert short.expires_at - short.created_at == 3600
    batch = await desk.send([line(1)])
    sweep = FileSweep(desk.database, FileStore(desk.settings.file_dir))
    await sweep.once(datetime.now(UTC) + timedelta(hours=2))
    assert [path.name for path in desk.settings.file_dir.iterdir()] == [batch.input_file_id]
    with pytest.raises(NotFoundError):
        await client.files.retrieve(short.id)
    with pytest.raises(APIStatusError) as refused:
        await client.files.delete(batch.input_file_id)
    assert refused.value.status_code == 409


async def test_bytes_that_no_row_names_are_swept_away_once_they_are_old(desk):
    store = FileStore(desk.settings.file_dir)
    sent = await desk.client().files.create(file=("a", b"x"), purpose="batch")
    stray = "file-" + "0" * 32
    with store.writing(stray) as out:
        out.write(b"of a crash")
    draft = store.root / ".draft"
    draft.write_bytes(b"half")
    sweep = FileSweep(desk.database, store)
    await sweep.once()
    assert len(list(store.root.iterdir())) == 3
    for path in store.root.iterdir():
        os.utime(path, (0, os.stat(path).st_mtime - SETTLED_S - 1))
    await sweep.once()
    await until(lambda: [path.name for path in store.root.iterdir()] == [sent.id])


async def test_a_write_that_fails_leaves_nothing(tmp_path):
    store = FileStore(tmp_path / "files")

    def fail() -> None:
        with store.writing("file-" + "1" * 32) as out:
            out.write(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert list(store.root.iterdir()) == []
