"""Every refusal is OpenAI's error body with the field at fault, and discloses nothing."""

import time
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.server import Server, loratorio

HELLO = [{"role": "user", "content": "Hello"}]


def post(server: Server, body: bytes | dict[str, Any], **headers: str) -> httpx2.Response:
    key = server.tenant(0)["api_key"]
    sent = {"authorization": f"Bearer {key}", "content-type": "application/json"} | headers
    sent = {name: value for name, value in sent.items() if value}
    url = f"{server.ready['base_url']}/chat/completions"
    if isinstance(body, bytes):
        return httpx2.post(url, content=body, headers=sent, timeout=30)
    return httpx2.post(url, json=body, headers=sent, timeout=30)


def chat(server: Server, **changed: Any) -> dict[str, Any]:
    return {"model": server.base, "messages": HELLO, "max_tokens": 4} | changed


def refused(call: Callable[[], Any]) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        call()
    return caught.value


def test_wrong_malformed_revoked_and_missing_keys_are_one_and_the_same_401(server: Server):
    project = server.tenant(0)["name"]
    revoked = new_key(server, project)
    revoke(server, revoked)
    good = server.tenant(0)["api_key"]
    wrong = good[:-1] + ("a" if good[-1] != "a" else "b")
    answers = []
    for header in ("", f"Bearer {wrong}", "Bearer nonsense", "Bearer 'OR'1'='1", "Basic eDp5"):
        answers.append(post(server, chat(server), authorization=header))
    deadline = time.monotonic() + 20
    while True:
        last = post(server, chat(server), authorization=f"Bearer {revoked}")
        if last.status_code == 401 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    answers.append(last)
    assert [answer.status_code for answer in answers] == [401] * 6
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["error"]["code"] == "invalid_api_key"


def new_key(server: Server, project: str) -> str:
    made = loratorio("key", "create", "--tenant", project, "--data-dir", str(server.data_dir))
    assert made.returncode == 0, made.stderr
    return next(word for word in made.stdout.split() if word.startswith("sk-"))


def revoke(server: Server, key: str) -> None:
    key_id = f"key_{key.split('-')[2]}"
    ended = loratorio("key", "revoke", key_id, "--data-dir", str(server.data_dir))
    assert ended.returncode == 0, ended.stderr


def test_a_missing_model_and_another_tenants_adapter_are_the_same_404(server: Server):
    client = server.client(0)
    bodies = []
    for model in ("nothing-of-this-name", server.adapters(1)[0]):
        error = refused(lambda model=model: client.chat.completions.create(
            model=model, messages=HELLO))  # fmt: skip
        assert error.status_code == 404
        assert isinstance(error.body, dict)
        bodies.append({k: str(v).replace(model, "NAME") for k, v in error.body.items()})
    assert bodies[0] == bodies[1]
    assert bodies[0]["code"] == "model_not_found"


def test_a_prompt_that_is_too_long_is_a_400_with_the_numbers(server: Server):
    words = "word " * 20_000
    error = refused(
        lambda: server.client().chat.completions.create(
            model=server.base, messages=[{"role": "user", "content": words}]
        )
    )
    assert error.status_code == 400
    assert error.code == "context_length_exceeded"
    numbers = [int(word) for word in error.message.replace(",", "").split() if word.isdigit()]
    assert any(number >= 20_000 for number in numbers), error.message
    assert len(numbers) >= 2, error.message


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"max_tokens": "four"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [7]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_field_is_a_400_that_names_it(server: Server, changed: dict[str, Any], param: str):
    answer = post(server, chat(server, **changed))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(param.partition("[")[0]), error


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'{"model": NaN}', b"\xff\xfe{}"])
def test_a_body_that_is_not_json_is_a_400(server: Server, body: bytes):
    answer = post(server, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_new_key_works_at_once_and_stops_when_it_is_revoked(server: Server):
    key = new_key(server, server.tenant(0)["name"])
    client = server.client(key=key)
    assert client.chat.completions.create(model=server.base, messages=HELLO, max_tokens=1)
    revoke(server, key)
    deadline = time.monotonic() + 20
    while post(server, chat(server), authorization=f"Bearer {key}").status_code != 401:
        assert time.monotonic() < deadline, "it goes on working"
        time.sleep(0.1)
    error = refused(
        lambda: client.chat.completions.create(model=server.base, messages=HELLO, max_tokens=1)
    )
    assert error.status_code == 401
