"""Answers held to a form by a real model, with the official client."""

import json

import openai
import pytest
from jsonschema import Draft202012Validator

from tests.e2e.server import Server

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "country": {"enum": ["France", "Japan", "Brazil"]},
        "population": {"type": "integer", "minimum": 1, "maximum": 99999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 1},
    },
    "required": ["city", "country", "population", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer as JSON."}]


def valid(text: str | None) -> bool:
    Draft202012Validator(CITY).validate(json.loads(text or ""))
    return True


@pytest.mark.parametrize("adapted", [False, True])
def test_an_answer_is_valid_by_its_schema(server: Server, adapted: bool):
    model = next(iter(server.adapters(0))) if adapted else server.base
    answer = server.client().chat.completions.create(
        model=model, messages=QUESTION, response_format=FORMAT, max_tokens=100, temperature=1.2,
        n=2, seed=5, logprobs=True, top_logprobs=3,
    )  # fmt: skip
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert valid(choice.message.content)
        assert choice.logprobs
        told = "".join(item.token for item in choice.logprobs.content or [])
        assert told == choice.message.content
    assert answer.choices[0].message.content != answer.choices[1].message.content


def test_a_streamed_one_is_the_same_in_pieces_beside_free_ones(server: Server):
    client = server.client()
    asked = {"model": server.base, "messages": QUESTION, "max_tokens": 100, "temperature": 0,
             "response_format": FORMAT}  # fmt: skip
    free = {"model": server.base, "messages": QUESTION, "max_tokens": 16, "temperature": 0}
    alone = client.chat.completions.create(**free).choices[0].message.content
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True)
    beside = client.chat.completions.create(**free).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert valid("".join(pieces))
    assert beside == alone


def test_a_limit_cuts_it_short_and_says_so(server: Server):
    answer = server.client().chat.completions.create(
        model=server.base, messages=QUESTION, response_format=FORMAT, max_tokens=4, temperature=0
    )
    assert answer.choices[0].finish_reason == "length"
    assert (answer.choices[0].message.content or "").startswith("{")


def test_choices_patterns_and_grammars_hold_too(server: Server):
    client = server.client()

    def complete(**extra: object) -> str:
        answer = client.completions.create(
            model=server.base, prompt="The answer is", max_tokens=30, temperature=1.5, seed=3,
            extra_body=extra,
        )  # fmt: skip
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].text

    assert complete(guided_choice=["oui", "non"]) in ("oui", "non")
    assert complete(guided_regex=r"\d{4}-\d{2}")[4] == "-"
    assert complete(structured_outputs={"grammar": 'root ::= ("ab" | "cd") "!"'}) in ("ab!", "cd!")
    asked = {"json": {"type": "boolean"}}
    assert complete(structured_outputs=asked) in ("true", "false")
    assert complete(guided_regex="x{2}", ignore_eos=True, min_tokens=20) == "xx"


def test_a_schema_at_fault_is_a_400_that_names_the_part(server: Server):
    schema = {**CITY, "properties": {**CITY["properties"], "tags": {"not": {}}}}
    fault = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(
            model=server.base, messages=QUESTION, response_format=fault
        )
    assert caught.value.param == "response_format.json_schema.schema.properties.tags"


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ASKED = {"max_tokens": 80, "temperature": 0, "tools": [WEATHER], "tool_choice": "required",
         "parallel_tool_calls": False}  # fmt: skip


def test_a_required_call_is_made_and_its_result_read(server: Server):
    client = server.client()
    messages: list = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat.completions.create(model=server.base, messages=messages, **ASKED)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    messages += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees and sunny"},
    ]
    answer = client.chat.completions.create(
        model=server.base, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=16
    )
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


def test_a_streamed_call_is_the_whole_one_in_pieces(server: Server):
    client = server.client()
    messages: list = [{"role": "user", "content": "What is the weather in Paris?"}]
    whole = client.chat.completions.create(model=server.base, messages=messages, **ASKED)
    with client.chat.completions.stream(model=server.base, messages=messages, **ASKED) as stream:
        pieces = [event.arguments_delta for event in stream
                  if event.type == "tool_calls.function.arguments.delta"]  # fmt: skip
        final = stream.get_final_completion()
    (call,), (streamed,) = whole.choices[0].message.tool_calls, final.choices[0].message.tool_calls
    assert len(pieces) > 3
    assert "".join(pieces) == streamed.function.arguments == call.function.arguments
    assert streamed.function.name == "weather"
    assert final.choices[0].finish_reason == "tool_calls"
