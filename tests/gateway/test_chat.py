"""Chat, not streamed: OpenAI's shapes, and what the engine is asked for."""

import pytest

from gateway.usage.record import Outcome
from tests.gateway.serving import BASE, KEY, OTHER_KEY, ask, build_model_dir, post, serving

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return build_model_dir(tmp_path_factory.mktemp("model"))


async def test_a_chat_is_answered_in_openais_shape(model_dir, tmp_path):
    async with serving(model_dir, tmp_path) as server:
        server.say("Hello, world!")
        got = await ask(server.port, post({"model": BASE, "messages": HELLO}))
        assert got.status == 200
        answer = got.json
        assert answer["object"] == "chat.completion"
        assert answer["id"].startswith("chatcmpl-")
        assert got.headers["x-request-id"] == "req_" + answer["id"].removeprefix("chatcmpl-")
        assert answer["model"] == BASE
        assert answer["system_fingerprint"] == "fp_base"
        assert answer["choices"] == [{
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!", "refusal": None,
                        "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }]  # fmt: skip
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(server.last.tokens)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert int(got.headers["openai-processing-ms"]) >= 0
