"""What a prompt is to the model can be asked without running it, in vLLM's shapes."""

import pytest

from tests.gateway.serving import BASE, CHATML, LIMITED_KEY, OTHER_KEY, ask, post, serving
from tests.gateway.test_models import get

HELLO = [{"role": "user", "content": "Hello"}]


def tokenize(**fields):
    return post(fields, path="/tokenize")


def detokenize(**fields):
    return post(fields, path="/detokenize")


async def test_a_text_is_counted_and_spelled(tmp_path):
    async with serving(tmp_path, context=128) as server:
        got = (await ask(server.port, tokenize(prompt="Hello 🙂", return_token_strs=True))).json
        assert got["tokens"] == server.tokenizer.encode("Hello 🙂", add_special=True)
        assert (got["count"], got["max_model_len"]) == (len(got["tokens"]), 128)
        assert len(got["token_strs"]) == got["count"]
        plain = (await ask(server.port, tokenize(model=BASE, prompt=""))).json
        assert (plain["count"], plain["tokens"], plain["token_strs"]) == (0, [], None)


async def test_a_chats_tokens_are_those_that_it_is_answered_with(tmp_path):
    async with serving(tmp_path) as server:
        got = (await ask(server.port, tokenize(messages=HELLO))).json
        await ask(server.port, post({"model": BASE, "messages": HELLO, "max_tokens": 1}))
        assert got["tokens"] == server.last.tokens
        bare = (await ask(server.port, tokenize(messages=HELLO, add_generation_prompt=False))).json
        assert bare["tokens"] == got["tokens"][: bare["count"]]
        assert bare["count"] < got["count"]


@pytest.mark.parametrize("text", ["Hello <|im_end|> 🙂 中文", ""])
async def test_what_was_tokenised_reads_as_it_was(tmp_path, text):
    async with serving(tmp_path) as server:
        tokens = (await ask(server.port, tokenize(prompt=text))).json["tokens"]
        assert (await ask(server.port, detokenize(tokens=tokens))).json == {"prompt": text}


async def test_a_client_may_render_chats_itself(tmp_path):
    async with serving(tmp_path, context=128) as server:
        info = (await ask(server.port, get("/tokenizer_info"))).json
        assert (info["bos_token"], info["eos_token"]) == ("<|im_start|>", "<|im_end|>")
        assert (info["pad_token"], info["model_max_length"]) == (None, 128)
        assert info["chat_template"] == CHATML
        assert (await ask(server.port, get("/tokenizer_info", "sk-no"))).status == 401


async def test_long_texts_go_there_and_back(tmp_path):
    async with serving(tmp_path) as server:
        text = "The quick brown fox. " * 1000
        tokens = (await ask(server.port, tokenize(prompt=text))).json["tokens"]
        assert (await ask(server.port, detokenize(tokens=tokens))).json["prompt"] == text


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (tokenize(), "prompt"),
        (tokenize(prompt=3), "prompt"),
        (tokenize(prompt="a", messages=HELLO), "prompt"),
        (tokenize(messages=[]), "messages"),
        (tokenize(messages=HELLO, chat_template="x"), "chat_template"),
        (tokenize(prompt="a", add_special_tokens="no"), "add_special_tokens"),
        (detokenize(), "tokens"),
        (detokenize(tokens="abc"), "tokens"),
        (detokenize(tokens=[1, -1]), "tokens[1]"),
        (detokenize(tokens=[1, 10**6]), "tokens[1]"),
        (detokenize(tokens=[[1]]), "tokens[0]"),
        (tokenize(model="", prompt="a"), "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_wrong_is_named(tmp_path, request_, param):
    async with serving(tmp_path) as server:
        got = await ask(server.port, request_)
        assert (got.status, got.error["param"]) == (400, param)


async def test_names_keys_and_limits_hold_here_too(tmp_path):
    async with serving(tmp_path) as server:
        body = {"prompt": "a", "model": "support"}
        assert (await ask(server.port, post(body, path="/tokenize"))).status == 200
        foreign = await ask(server.port, post(body, path="/tokenize", key=OTHER_KEY))
        assert (foreign.status, foreign.error["code"]) == (404, "model_not_found")
        assert (await ask(server.port, post(body, path="/tokenize", key="sk-no"))).status == 401
        asked = [post({"prompt": "a"}, path="/tokenize", key=LIMITED_KEY) for _ in range(5)]
        assert [(await ask(server.port, one)).status for one in asked][-1] == 429
        assert server.engine.submitted == []
