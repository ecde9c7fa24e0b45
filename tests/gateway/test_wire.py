"""Every field is checked by name and number, and every trap of JSON is one documented 400."""

import json

import pytest

from gateway.errors import InvalidJson, InvalidRequest, InvalidType
from gateway.inference.body import parse_object
from gateway.inference.description import CHAT, COMPLETION, SHARED
from gateway.inference.tier import Tier
from gateway.inference.wire import read_chat, read_completion

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields):
    return read_chat({"model": "m", "messages": HELLO, **fields})


def refused(read, body):
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 7}, "model", "invalid_type"),
        ({"model": "a\nb"}, "model", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "Hello"}, "messages", "invalid_type"),
        ({"messages": ["Hello"]}, "messages[0]", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": "a\0b"}]},
            "messages[0].content",
            "invalid_value",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id",
         "missing_required_parameter"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": 1.5}, "top_p", "invalid_value"),
        ({"min_p": -1}, "min_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"top_k": 1.5}, "top_k", "invalid_type"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "invalid_value"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 1000}, "n", "invalid_value"),
        ({"seed": "x"}, "seed", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ["a", 5]}, "stop[1]", "invalid_type"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop": "x" * 1025}, "stop", "invalid_value"),
        ({"logprobs": 3}, "logprobs", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage",
         "invalid_type"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        ({"skip_special_tokens": 0}, "skip_special_tokens", "invalid_type"),
        ({"add_generation_prompt": True, "continue_final_message": True},
         "continue_final_message", "invalid_value"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages",
         "invalid_value"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "unsupported_parameter"),
        ({"add_special_tokens": True}, "add_special_tokens", "unsupported_parameter"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output", "invalid_type"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else str(value),
)  # fmt: skip
def test_a_bad_field_is_named(fields, param, code):
    error = refused(read_chat, {"model": "m", "messages": HELLO, **fields})
    assert (error.param, error.detail_code, error.status) == (param, code, 400)


def test_numbers_are_in_the_message():
    error = refused(read_chat, {"model": "m", "messages": HELLO, "temperature": 2.1})
    assert "2.1" in error.message
    assert "between 0 and 2" in error.message


def test_defaults_change_nothing():
    options = chat().options
    assert options.sampling.temperature == 1.0
    assert (options.n, options.stop, options.max_tokens, options.logprobs) == (1, (), None, None)
    assert not options.stream
    assert options.ignored == ()


def test_null_means_absent():
    names = ("temperature", "top_p", "n", "stop", "tools", "response_format", "stream", "seed",
             "logit_bias", "stream_options", "max_tokens", "user")  # fmt: skip
    assert chat(**dict.fromkeys(names)) == chat()


def test_both_names_of_the_token_limit_work():
    assert chat(max_completion_tokens=7).options.max_tokens == 7
    assert chat(max_tokens=7).options.max_tokens == 7
    assert chat(max_tokens=7, max_completion_tokens=7).options.max_tokens == 7


def test_a_top_p_of_zero_is_greedy():
    assert chat(top_p=0, temperature=1.5).options.sampling.temperature == 0


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_is_taken(seed):
    assert chat(seed=seed).options.sampling.seed == seed


def test_empty_stop_strings_are_ignored_and_doubles_dropped():
    assert chat(stop=["", "a", "a"]).options.stop == ("a",)
    assert chat(stop="").options.stop == ()


def test_extras_reach_the_sampling():
    sampling = chat(top_k=5, min_p=0.1, repetition_penalty=1.2, min_tokens=3).options.sampling
    assert (sampling.top_k, sampling.min_p) == (5, 0.1)
    assert (sampling.repetition_penalty, sampling.min_tokens) == (1.2, 3)
    assert chat(top_k=-1).options.sampling.top_k == 0


def test_ignored_and_unknown_fields_are_listed():
    options = chat(user="u", store=True, zebra=1, stream=True,
                   stream_options={"include_obfuscation": False}).options  # fmt: skip
    assert (options.customer, options.ignored) == (
        "u",
        ("store", "zebra", "stream_options.include_obfuscation"),
    )


def test_harmless_forms_of_unsupported_fields_pass():
    assert chat(tools=[], tool_choice="none", response_format={"type": "text"},
                modalities=["text"]) == chat()  # fmt: skip


def test_text_parts_are_joined_and_the_developer_is_the_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = chat(messages=[{"role": "developer", "content": parts}]).messages
    assert messages == ({"role": "system", "content": "a\nb"},)


def test_null_content_needs_tool_calls():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    (read,) = chat(messages=[message]).messages
    assert read["content"] == ""
    assert read["tool_calls"][0]["function"]["arguments"] == {"x": 1}


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(None, "prompt"), ([], "prompt"), ({}, "prompt"), ([[]], "prompt[0]"), ([1, "a"], "prompt[1]"),
     (["a", 1], "prompt[1]"), ([-1], "prompt[0]"), ("a\0", "prompt")],
    ids=str,
)  # fmt: skip
def test_a_bad_prompt_is_named(prompt, param):
    assert refused(read_completion, {"model": "m", "prompt": prompt}).param == param


def test_prompts_of_every_kind():
    def prompts(value):
        return read_completion({"model": "m", "prompt": value}).prompts

    assert prompts("a") == ("a",)
    assert prompts(["a", "b"]) == ("a", "b")
    assert prompts([1, 2]) == ((1, 2),)
    assert prompts([[1], [2, 3]]) == ((1,), (2, 3))


def test_completions_default_to_sixteen_tokens_and_take_none_only_with_echo():
    assert read_completion({"model": "m", "prompt": "a"}).options.max_tokens == 16
    echo = {"model": "m", "prompt": "a", "max_tokens": 0, "echo": True}
    assert read_completion(echo).options.max_tokens == 0
    assert refused(read_completion, {**echo, "echo": False}).param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"n": 2, "best_of": 1}, "at least n, 2"), ({"best_of": 2, "stream": True}, "stream"),
     ({"best_of": 129}, "between 1 and 128"), ({"best_of": 0}, "between 1 and 128")],
    ids=str,
)  # fmt: skip
def test_best_of_must_leave_something_to_choose_from(fields, message):
    error = refused(read_completion, {"model": "m", "prompt": "a", **fields})
    assert (error.param, message in error.message) == ("best_of", True)


def test_best_of_is_how_many_are_generated():
    body = {"model": "m", "prompt": "a", "best_of": 3}
    assert read_completion(body).options.candidates == 3
    assert read_completion({**body, "best_of": 1, "stream": True}).options.candidates == 1
    assert chat(n=2).options.candidates == 2


@pytest.mark.parametrize(
    ("asked", "tier"),
    [("auto", Tier.DEFAULT), ("default", Tier.DEFAULT), ("flex", Tier.FLEX),
     ("priority", Tier.PRIORITY), ("fast", Tier.PRIORITY), (None, None)],
)  # fmt: skip
def test_service_tiers_are_read(asked, tier):
    assert chat(service_tier=asked).options.tier is tier


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b'\xef\xbb\xbf{"a":1}', "byte order mark"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":1}x', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_broken_json_is_explained(raw, words):
    with pytest.raises(InvalidJson) as caught:
        parse_object(raw)
    assert words in caught.value.message


def test_a_body_that_is_no_object_is_refused():
    with pytest.raises(InvalidType):
        parse_object(b"[1]")


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**400])
def test_integers_beyond_64_bits_are_refused_and_never_rounded(number):
    with pytest.raises(InvalidRequest, match="64 bits"):
        parse_object(b'{"seed":%d}' % number)


def test_long_digits_inside_strings_are_only_text():
    assert parse_object(b'{"a":"%s"}' % (b"9" * 30)) == {"a": "9" * 30}
    assert parse_object(b'{"a":%d}' % (2**63 - 1)) == {"a": 2**63 - 1}


def test_the_last_of_duplicate_keys_wins():
    assert parse_object(b'{"a":1,"a":2}') == {"a": 2}


def test_a_lone_surrogate_is_refused_with_its_path():
    raw = rb'{"messages":[{"role":"user","content":"ok"},{"role":"user","content":"\ud83d"}]}'
    with pytest.raises(InvalidRequest) as caught:
        parse_object(raw)
    assert caught.value.param == "messages[1].content"


def test_a_lone_surrogate_in_a_key_can_still_be_answered():
    with pytest.raises(InvalidRequest) as caught:
        parse_object(rb'{"\ud83d":{"x":"\udc00"}}')
    json.dumps(caught.value.body()).encode()


@pytest.mark.parametrize(
    ("read", "properties", "body"),
    [
        (read_chat, {**SHARED, **CHAT}, {"model": "m", "messages": HELLO}),
        (read_completion, {**SHARED, **COMPLETION}, {"model": "m", "prompt": "a"}),
    ],
    ids=["chat", "completion"],
)
def test_what_the_description_names_is_what_is_read(read, properties, body):
    for name in properties:
        if name in body:
            continue
        with pytest.raises(InvalidRequest) as caught:
            read({**body, name: object()})  # no field takes this
        assert caught.value.param == name
