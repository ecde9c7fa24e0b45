"""What tutorials show runs unchanged, with the official client, against a real server."""

import json
import urllib.request

import pytest

from tests.e2e.server import Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHINESE = [{"role": "user", "content": "你好！请用一句话介绍一下你自己。"}]


def test_a_chat_is_answered_with_its_usage(server: Server):
    answer = server.client().chat.completions.create(
        model=server.base, messages=QUESTION, max_tokens=24, temperature=0
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason in {"stop", "length"}
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens > 10
    assert 1 <= usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_streamed_chat_is_the_same_text_in_pieces(server: Server):
    client = server.client()
    asked = {"model": server.base, "messages": CHINESE, "max_tokens": 48, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len([piece for piece in pieces if piece]) > 3
    assert "".join(pieces) == whole.choices[0].message.content
    assert "\ufffd" not in "".join(pieces)[:-1]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_a_text_completion_continues_the_prompt(server: Server):
    answer = server.client().completions.create(
        model=server.base, prompt="1, 2, 3, 4, 5, 6,", max_tokens=8, temperature=0
    )
    assert "7" in answer.choices[0].text


def test_the_models_of_a_project_are_the_base_and_its_own_adapters(server: Server):
    for index, count in ((0, 2), (1, 1)):
        listed = {model.id for model in server.client(index).models.list()}
        assert listed == {server.base, *server.adapters(index)}
        assert len(server.adapters(index)) == count


def test_a_seed_makes_a_warm_answer_repeatable(server: Server):
    asked = {"model": server.base, "messages": QUESTION, "max_tokens": 16, "temperature": 1.0}
    client = server.client()
    texts = [
        client.chat.completions.create(**asked, seed=seed).choices[0].message.content
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_several_choices_share_one_prompt(server: Server):
    answer = server.client().chat.completions.create(
        model=server.base, messages=QUESTION, max_tokens=6, n=3, temperature=1.0, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 18


def test_logprobs_come_with_their_alternatives(server: Server):
    answer = server.client().chat.completions.create(
        model=server.base, messages=QUESTION, max_tokens=4, temperature=0,
        logprobs=True, top_logprobs=3,
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for token in logprobs.content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)  # greedy


def test_a_stop_string_ends_the_text_before_itself(server: Server):
    client = server.client()
    asked = {"model": server.base, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content or ""
    stop = whole.split()[-1][:3]
    cut = client.chat.completions.create(**asked, stop=stop).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.message.content == whole[: whole.index(stop)]


def test_the_page_and_the_probes_answer_without_a_key(server: Server):
    origin = server.ready["base_url"].removesuffix("/v1")
    assert server.ready["dashboard_url"] == f"{origin}/dashboard"
    pages = (("/", "text/html"), ("/dashboard", "text/html"))
    for path, kind in (*pages, ("/healthz", ""), ("/readyz", "")):
        with urllib.request.urlopen(origin + path, timeout=10) as answer:
            assert answer.status == 200
            assert kind in answer.headers["content-type"]


def test_the_ready_file_says_how_to_call_the_server(server: Server):
    assert set(server.ready) >= {
        *("base_url", "dashboard_url", "metrics_url", "admin_key", "base_model", "tenants"),
    }
    path = server.data_dir / "ready.json"
    assert path.stat().st_mode & 0o077 == 0
    assert json.loads(path.read_text()) == server.ready
    for tenant in server.ready["tenants"]:
        assert tenant["api_key"] in server.log  # printed for the person at the terminal
