"""``/v1/responses`` over the official client, its answers and events held to the client's types."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from openai import BadRequestError, NotFoundError, PermissionDeniedError
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.db import Tenancy
from gateway.identity.models import Organisation, Project
from gateway.inference.recommended import Recommended
from gateway.responses.archive import Archive
from gateway.responses.repository import RetentionRepository
from tests.gateway.serving import (
    ADMIN_KEY,
    BASE,
    KEY,
    OTHER_KEY,
    ask,
    post,
    principal,
    serving,
)
from tests.gateway.test_tools import CALL, QWEN
from tests.services import BOTH, sqlite_unless_both

EVENTS = TypeAdapter(ResponseStreamEvent)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "Knows.", "strict": False,
           "parameters": CITY}  # fmt: skip


backend = sqlite_unless_both


async def tenants(database):
    now = datetime.now(UTC)
    async with database.unit_of_work() as session:
        session.add(Organisation(id="org_1", name="one", created_at=now))
        await session.flush()
        session.add_all(
            Project(id=f"prj_{name}", organisation_id="org_1", name=name, created_at=now)
            for name in ("acme", "globex")
        )


@pytest.fixture
async def server(database, tmp_path):
    await tenants(database)
    async with serving(tmp_path, database=database, template=QWEN) as started:
        yield started


def shown(server) -> str:
    """What the engine was given to read."""
    return "".join(server.tokenizer.text_of(token) for token in server.last.tokens)


async def events_of(server, **body):
    """Of a stream: read raw, each held to the client's schema, its numbers to their order."""
    got = await ask(
        server.port, post({"model": BASE, "stream": True, **body}, path="/v1/responses")
    )
    assert got.status == 200, got.body
    found = []
    for frame in got.body.decode().strip().split("\n\n"):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENTS.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def test_a_text_is_answered_with_the_clients_own_types(server):
    server.say("Hello there")
    found = await server.client().responses.create(
        model=BASE, input="Hi", instructions="Be short.", metadata={"a": "b"}, temperature=0.5
    )
    Response.model_validate(found.model_dump(mode="json"), strict=False)
    assert (found.status, found.output_text, found.model) == ("completed", "Hello there", BASE)
    assert found.output[0].content[0].type == "output_text"
    assert (found.instructions, found.metadata, found.temperature) == ("Be short.", {"a": "b"}, 0.5)
    assert found.usage.input_tokens == len(server.last.tokens)
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert "system\nBe short." in shown(server)
    assert "user\nHi" in shown(server)
    assert server.recorder.records[0].endpoint == "responses"


async def test_a_response_says_how_its_tokens_were_chosen_where_nobody_said(database, tmp_path):
    await tenants(database)
    cool = Recommended(temperature=0.2, top_p=0.9)
    async with serving(tmp_path, database=database, template=QWEN, unsaid=cool) as server:
        server.say("Hello there")
        found = await server.client().responses.create(model=BASE, input="Hi", top_p=0.5)
        assert (found.temperature, found.top_p) == (0.2, 0.5)
        assert (server.last.sampling.temperature, server.last.sampling.top_p) == (0.2, 0.5)


async def test_a_stream_is_openais_events_in_their_order(server):
    server.say("Hello there")
    events = await events_of(server, input="Hi")
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert len(deltas) > 1
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added",
        *["output_text.delta"] * len(deltas),
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(deltas) == "Hello there"
    last = events[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == "Hello there"
    assert events[0]["response"]["status"] == "in_progress"
    async with server.client().responses.stream(model=BASE, input="Hi") as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_text == "Hello there"


@BOTH
async def test_what_is_kept_can_be_read_listed_gone_on_from_and_deleted(server):
    client = server.client()
    server.say("Paris")
    first = await client.responses.create(model=BASE, input="Capital of France?")
    assert (await client.responses.retrieve(first.id)).output_text == "Paris"
    second = await client.responses.create(
        model=BASE, previous_response_id=first.id, input="And of Italy?", instructions="Now."
    )
    read = shown(server)
    assert second.previous_response_id == first.id
    places = [read.index(text) for text in ("Now.", "Capital of France?", "Paris", "And of Italy?")]
    assert places == sorted(places)
    items = await client.responses.input_items.list(second.id)
    assert [item.content[0].text for item in items.data] == ["And of Italy?"]
    await client.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(BadRequestError) as gone:
        await client.responses.create(model=BASE, previous_response_id=first.id, input="?")
    assert (gone.value.code, gone.value.param) == (
        "previous_response_not_found", "previous_response_id")  # fmt: skip
    third = await client.responses.create(model=BASE, previous_response_id=second.id, input="?")
    assert "Capital of France?" in shown(server)
    with pytest.raises(BadRequestError):
        await client.responses.cancel(third.id)


async def test_input_items_are_paged_in_both_orders(server):
    client = server.client()
    said = [{"role": "user", "content": f"{n}"} for n in range(5)]
    found = await client.responses.create(model=BASE, input=said, max_output_tokens=1)
    for order, wanted in (("asc", "01234"), ("desc", "43210")):
        items = client.responses.input_items.list(found.id, order=order, limit=2)
        assert "".join([item.content[0].text async for item in items]) == wanted
    with pytest.raises(BadRequestError):
        await client.responses.input_items.list(found.id, after="msg_none")


async def test_input_tokens_are_counted_as_they_would_be_used(server):
    client = server.client()
    first = await client.responses.create(model=BASE, input="Hi", max_output_tokens=3)
    more = {"model": BASE, "input": "And?", "previous_response_id": first.id}
    counted = await client.responses.input_tokens.count(**more)
    assert counted.object == "response.input_tokens"
    used = await client.responses.create(**more, max_output_tokens=1)
    assert counted.input_tokens == used.usage.input_tokens > first.usage.input_tokens
    assert len(server.engine.submitted) == 2


@BOTH
async def test_what_is_not_to_be_kept_is_not(server, database):
    client = server.client()
    unkept = await client.responses.create(model=BASE, input="Hi", store=False, max_output_tokens=1)
    async with database.unit_of_work(within=Tenancy("org_1", "prj_acme")) as session:
        await RetentionRepository(session, "prj_acme").set(0)
    never = await client.responses.create(model=BASE, input="Hi", max_output_tokens=1)
    for found in (unkept, never):
        assert found.model_extra["store"] is False
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(found.id)
    kept = await server.client(OTHER_KEY).responses.create(model=BASE, input="Hi")
    assert (await server.client(OTHER_KEY).responses.retrieve(kept.id)).id == kept.id


@BOTH
async def test_what_is_kept_has_its_time(server, database):
    client = server.client()
    found = await client.responses.create(model=BASE, input="Hi", max_output_tokens=1)
    archive = Archive(database, days=30)
    assert await archive.sweep(datetime.now(UTC) + timedelta(days=29)) == 0
    assert await archive.sweep(datetime.now(UTC) + timedelta(days=31)) == 1
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(found.id)


@BOTH
async def test_others_find_nothing(server):
    found = await server.client().responses.create(model=BASE, input="Hi", max_output_tokens=1)
    for key, error in ((OTHER_KEY, NotFoundError), (ADMIN_KEY, PermissionDeniedError)):
        client = server.client(key)
        for call in (
            client.responses.retrieve(found.id),
            client.responses.delete(found.id),
            client.responses.cancel(found.id),
            client.responses.input_items.list(found.id),
        ):
            with pytest.raises(error):
                await call
    got = await ask(server.port, post(
        {"model": BASE, "input": "?", "previous_response_id": found.id},
        path="/v1/responses", key=OTHER_KEY,
    ))  # fmt: skip
    assert (got.status, got.error["code"]) == (400, "previous_response_not_found")


async def test_an_answer_that_was_cut_says_so(server):
    found = await server.client().responses.create(model=BASE, input="Hi", max_output_tokens=2)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.output[0].status, found.usage.output_tokens) == ("incomplete", 2)
    events = await events_of(server, input="Hi", max_output_tokens=2)
    assert events[-1]["type"] == "response.incomplete"


async def test_an_empty_answer_is_an_empty_message(server):
    server.say("")
    assert (await server.client().responses.create(model=BASE, input="Hi")).output_text == ""
    events = await events_of(server, input="Hi")
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


async def test_a_function_is_called_and_what_it_gave_is_read(server):
    client = server.client()
    server.say(CALL)
    first = await client.responses.create(model=BASE, input="Weather?", tools=[WEATHER])
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments) == {"city": "Paris"}
    server.say("It rains")
    given = {"type": "function_call_output", "call_id": call.call_id, "output": "rain, 9 degrees"}
    second = await client.responses.create(
        model=BASE, previous_response_id=first.id, input=[given], tools=[WEATHER]
    )
    assert second.output_text == "It rains"
    assert "tool\nrain, 9 degrees" in shown(server)
    listed = await client.responses.input_items.list(second.id)
    assert [item.type for item in listed.data] == ["function_call_output"]


async def test_a_streamed_call_has_events_of_its_own(server):
    server.say("Let me see. " + CALL)
    events = await events_of(server, input="Weather?", tools=[WEATHER])
    kinds = [event["type"].removeprefix("response.") for event in events]
    arguments = [e["delta"] for e in events if e["type"].endswith("arguments.delta")]
    assert json.loads("".join(arguments)) == {"city": "Paris"}
    order = [kind for kind in kinds if "delta" not in kind]
    assert order == [
        "created", "in_progress", "output_item.added", "content_part.added",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "message", "function_call"]  # fmt: skip


async def test_logprobs_and_a_format_are_asked_for_as_this_api_says(server):
    found = await server.client().responses.create(
        model=BASE, input="Hi", max_output_tokens=2, top_logprobs=2,
        include=["message.output_text.logprobs"],
    )  # fmt: skip
    chances = found.output[0].content[0].logprobs
    assert len(chances) == 2
    assert [len(one.top_logprobs) for one in chances] == [2, 2]
    schema = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    await server.client().responses.create(
        model=BASE, input="Hi", max_output_tokens=4,
        text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}},
    )  # fmt: skip
    assert server.last.grammar is not None


async def test_a_stream_that_breaks_ends_in_failed(server):
    server.engine.knobs.fail_after = 2
    events = await events_of(server, input="Hi")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    got = await ask(server.port, post({"model": BASE, "input": "Hi", "stream": False},
                                      path="/v1/responses"))  # fmt: skip
    assert (got.status, got.error["code"]) == (500, "engine_failed")


REFUSED = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": "a\0"}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role"),
    ({"input": [{"content": "x"}]}, "input[0].type"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
     "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
     "input[0].content[0].text"),
    ({"instructions": 5}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}},
     "tool_choice.name"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"store": "no"}, "store"),
    ({"model": None}, "model"),
]  # fmt: skip


async def test_what_cannot_be_is_refused_with_its_field(server):
    for change, param in REFUSED:
        body = {"model": BASE, "input": "a"} | change
        got = await ask(server.port, post(body, path="/v1/responses"))
        assert (got.status, got.error["param"]) == (400, param), got.body
    assert server.engine.submitted == []


async def test_unknown_fields_are_named_and_nothing_of_a_chat_is_let_in(server):
    body = {"model": BASE, "input": "a", "odd": 1, "n": 2, "messages": [], "reasoning": {},
            "max_output_tokens": 1}  # fmt: skip
    got = await ask(server.port, post(body, path="/v1/responses", key=KEY))
    assert got.status == 200
    assert got.headers["x-ignored-params"] == "messages, n, odd, reasoning"
    body = {"model": BASE, "input": "a", "max_output_tokens": 1, "text": {"verbosity": "low"},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}  # fmt: skip
    got = await ask(server.port, post(body, path="/v1/responses", key=KEY))
    assert got.headers["x-ignored-params"] == "text.verbosity, include"
    body["include"].pop()
    body.pop("text")
    got = await ask(server.port, post(body, path="/v1/responses", key=KEY))
    assert (got.status, got.headers.get("x-ignored-params")) == (200, None)


async def test_a_strict_project_has_unknown_fields_refused(server):
    server.snapshot.keys[KEY] = principal("acme", strict=True)
    body = {"model": BASE, "input": "a", "reasoning": {}, "max_output_tokens": 1}
    assert (await ask(server.port, post(body, path="/v1/responses"))).status == 200
    got = await ask(server.port, post(body | {"odd": 1}, path="/v1/responses"))
    assert (got.status, got.error["param"]) == (400, "odd")
