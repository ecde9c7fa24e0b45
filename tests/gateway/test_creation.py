"""Idempotency-Key on routes that create: once made, the same answer, and nobody else's."""

import asyncio
import json

import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI

from gateway.idempotency.answers import MemoryAnswers
from gateway.inference.creation import Creations, Fingerprint
from gateway.inference.gate import Gate
from tests.gateway.batching import CHAT, batching, line
from tests.services import sqlite_unless_both

backend = sqlite_unless_both
JSONL = json.dumps(line(1)).encode()
ONCE = {"Idempotency-Key": "k"}


@pytest.fixture
async def desk(database, tmp_path):
    async with batching(database, tmp_path) as found:
        gate = Gate(found.live, open_to_this_machine=False)
        found.app = Creations(found.app, MemoryAnswers(), gate.identify)
        yield found


async def send(client: AsyncOpenAI, data: bytes = JSONL, key: str = "f"):
    return await client.files.create(
        file=("in.jsonl", data), purpose="batch", extra_headers={"Idempotency-Key": key}
    )


async def create(client: AsyncOpenAI, file: str, **more):
    raw = await client.batches.with_raw_response.create(
        input_file_id=file, completion_window="24h", **{"endpoint": CHAT, "extra_headers": ONCE}
        | more,
    )  # fmt: skip
    return raw.headers.get("idempotent-replayed"), raw.parse()


async def refusal(awaitable) -> tuple[int, str | None, str | None]:
    with pytest.raises(APIStatusError) as raised:
        await awaitable
    return raised.value.status_code, raised.value.code, raised.value.param


async def test_a_batch_that_is_sent_again_is_one_batch(desk):
    client = desk.client()
    file = await send(client)
    first, again = [await create(client, file.id) for _ in range(2)]
    assert (first[0], again[0]) == (None, "true")
    assert again[1] == first[1]
    await desk.end_of(first[1])
    assert len(await desk.events()) == 1
    assert len([each async for each in client.batches.list()]) == 1
    other = create(client, file.id, metadata={"another": "body"})
    assert await refusal(other) == (422, "idempotency_key_reused", "Idempotency-Key")
    cancel = client.batches.cancel(first[1].id, extra_headers=ONCE)
    assert (await refusal(cancel))[:2] == (422, "idempotency_key_reused")


async def test_twenty_at_once_make_one_and_the_others_are_told_to_wait_or_get_it(desk):
    client = desk.client()
    file = await send(client)
    many = await asyncio.gather(
        *(create(client, file.id) for _ in range(20)), return_exceptions=True
    )
    made = {each[1].id for each in many if isinstance(each, tuple)}
    busy = [each for each in many if isinstance(each, APIStatusError)]
    assert len(made) == 1
    assert {each.code for each in busy} <= {"idempotency_key_in_use"}
    assert len([each async for each in client.batches.list()]) == 1


async def test_a_file_is_compared_by_what_it_holds_not_by_its_forms_boundary(desk):
    client = desk.client()
    first, again = [await send(client) for _ in range(2)]
    assert again == first
    assert len([each async for each in client.files.list()]) == 1
    reused = (422, "idempotency_key_reused", "Idempotency-Key")
    same_length = JSONL.replace(b"Hello", b"Jello")
    assert await refusal(send(client, same_length)) == reused
    assert await refusal(send(client, JSONL + b"\n" * (1 << 20))) == reused


async def test_what_was_refused_is_tried_again_and_keys_are_a_projects_own(desk):
    client, other = desk.client(), desk.client("globex")
    assert (await refusal(create(client, "file-none")))[0] == 404
    file = await send(client)
    assert (await create(client, file.id))[0] is None
    assert (await refusal(create(other, file.id)))[0] == 404
    theirs = await send(other)
    assert theirs.id != file.id
    assert (await create(other, theirs.id))[0] is None


async def test_a_key_that_is_none_is_named_and_an_unknown_caller_learns_nothing(desk):
    client = desk.client()
    file = await send(client)
    wrong = create(client, file.id, extra_headers={"Idempotency-Key": "a b"})
    assert await refusal(wrong) == (400, "invalid_value", "Idempotency-Key")
    await create(client, file.id)
    desk.keys["stranger"] = "sk-wrong"
    assert (await refusal(create(desk.client("stranger"), file.id)))[:2] == (401, "invalid_api_key")


async def test_a_secret_is_shown_once_and_made_once(clients):
    (acme, _, _), live = clients
    behind = acme._client._transport.app
    app = Creations(behind, MemoryAnswers(), Gate(live, open_to_this_machine=False).identify)
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))
    async with acme.with_options(http_client=http) as client:
        organization = client.admin.organization
        made = await organization.projects.create(name="shop", extra_headers=ONCE)
        again = await organization.projects.create(name="shop", extra_headers=ONCE)
        assert again == made
        accounts = organization.projects.service_accounts
        account = await accounts.create(made.id, name="bot", extra_headers={"Idempotency-Key": "a"})
        assert account.api_key.value.startswith("sk-")
        repeated = accounts.create(made.id, name="bot", extra_headers={"Idempotency-Key": "a"})
        assert (await refusal(repeated))[:2] == (409, "idempotency_answer_not_kept")
        assert len([each async for each in accounts.list(made.id)]) == 1


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_a_body_has_one_fingerprint_however_it_is_cut(size):
    def of(body: bytes, boundary: bytes, cut: int) -> str:
        found = Fingerprint(b'multipart/form-data; boundary="%b"' % boundary)
        for start in range(0, len(body), cut):
            found.add(body[start : start + cut])
        return found.digest

    form = b"--BOUND\r\n" + b"x" * 300 + b"\r\n--BOUND\r\nab\r\n--BOUND--"
    whole = of(form.replace(b"BOUND", b"aXbXaXc"), b"aXbXaXc", 10_000)
    assert of(form.replace(b"BOUND", b"qqqqqqq"), b"qqqqqqq", size) == whole
    assert of(form.replace(b"BOUND", b"qqqqqqq") + b"!", b"qqqqqqq", size) != whole
