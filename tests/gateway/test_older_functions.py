"""Functions as they were called before there were tools: asked for and answered in that form."""

import json

from tests.gateway.serving import BASE, ask, post, serving
from tests.gateway.test_tools import CALL, QWEN

WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}
ASKED = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "functions": [WEATHER]}


async def test_a_call_is_answered_as_a_function_call(tmp_path):
    async with serving(tmp_path, template=QWEN, context=2048) as server:
        server.say(CALL)
        got = await ask(server.port, post(ASKED))
        (choice,) = got.json["choices"]
        assert choice["finish_reason"] == "function_call"
        call = choice["message"]["function_call"]
        assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Paris"})
        assert "tool_calls" not in choice["message"]
        assert choice["message"]["content"] is None


async def test_a_streamed_call_comes_in_the_older_deltas(tmp_path):
    async with serving(tmp_path, template=QWEN, context=2048) as server:
        server.say(CALL)
        async with server.client() as client:
            chunks = [
                chunk.choices[0]
                async for chunk in await client.chat.completions.create(
                    **ASKED, function_call={"name": "weather"}, stream=True
                )
            ]
        calls = [c.delta.function_call for c in chunks if c.delta.function_call]
        assert calls[0].name == "weather"
        assert all(call.name is None for call in calls[1:])
        assert json.loads("".join(call.arguments for call in calls)) == {"city": "Paris"}
        assert not any(c.delta.tool_calls for c in chunks)
        assert chunks[-1].finish_reason == "function_call"


async def test_a_conversation_goes_on_from_the_older_messages(tmp_path):
    seen = (
        "{% for m in messages %}{{ m.role }}|{{ m.content }}|{{ m.tool_call_id }}|"
        "{% for c in m.tool_calls %}{{ c.id }} {{ c.function.arguments.city }}{% endfor %};"
        "{% endfor %}{{ tools }}<tool_call>"
    )
    async with serving(tmp_path, template=seen, context=2048) as server:
        server.say("Sunny.")
        messages = [
            {"role": "user", "content": "Paris?"},
            {"role": "assistant", "content": None,
             "function_call": {"name": "weather", "arguments": '{"city": "Paris"}'}},
            {"role": "function", "name": "weather", "content": "sun"},
        ]  # fmt: skip
        got = await ask(server.port, post({**ASKED, "messages": messages}))
        assert got.status == 200, got.body
        lines = server.tokenizer_text(server.last.tokens).split(";")
        assert lines[1:3] == ["assistant|||function_weather Paris", "tool|sun|function_weather|"]
        del messages[2]["name"]
        nameless = await ask(server.port, post({**ASKED, "messages": messages}))
        assert nameless.json["error"]["param"] == "messages[2].name"


async def test_function_call_none_is_text(tmp_path):
    async with serving(tmp_path, template=QWEN, context=2048) as server:
        server.say("No call.")
        got = await ask(server.port, post({**ASKED, "function_call": "none"}))
        assert got.json["choices"][0]["message"]["content"] == "No call."
        assert got.json["choices"][0]["finish_reason"] == "stop"
        assert server.last.grammar is None
