"""Requests as a busy gateway gets them: many tenants, and not all of them right.

Of each hundred, by their place: whole answers and streams, of the base and of adapters, to chats
and completions, some for customers of their own name, some under an ``Idempotency-Key`` and some of
those again, clients that leave, and requests to be refused: for their key, model, body, path or
rate. Prompts, customers, keys and wrong names are all different: what is kept of them must end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from bench.gateway.pump import Ask
from gateway.identity.keys import generate
from tests.gateway.serving import BASE

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SENTENCES = 9  # some 80 tokens with the template's: a page and more, and no two are alike
STREAMED_TOKENS = 8
RIGHT, WRONG_KEY, WRONG_MODEL, WRONG_BODY = (200,), (401,), (404,), (400,)
RATED = (200, 429)
KEPT = (200, 409)  # or the first is still under way


@dataclass(frozen=True, slots=True)
class Tenant:
    organisation: str
    key: str
    models: tuple[str, ...] = (BASE,)


class Traffic:
    """Numbers go on over all samples. ``limited``: a tenant of a few requests a minute."""

    def __init__(self, tenants: Sequence[Tenant], limited: Tenant) -> None:
        self._tenants, self._limited = tenants, limited
        self._number = 0

    def asks(self, count: int) -> Iterator[Ask]:
        for _ in range(count):
            self._number += 1
            yield self._ask(self._number)

    def _ask(self, number: int) -> Ask:
        place, turn = number % 100, number // 100
        who = self._tenants[number % len(self._tenants)]
        model = who.models[turn % len(who.models)]
        if place < 56:
            return Ask(_chat(who.key, model, number), RIGHT)
        if place < 64:
            return Ask(_chat(who.key, model, number, stream=True), RIGHT)
        if place < 70:
            return Ask(_chat(who.key, model, number, user=f"customer-{number}"), RIGHT)
        if place < 75:
            return Ask(_completion(who.key, model, number), RIGHT)
        if place < 80:
            return Ask(_chat(who.key, model, number, once=number), RIGHT)
        if place < 83 and turn:
            return self._again(number - 105)
        return self._odd(place, who, model, number)

    def _again(self, asked: int) -> Ask:
        """What had its own key in the hundred before."""
        who = self._tenants[asked % len(self._tenants)]
        model = who.models[asked // 100 % len(who.models)]
        return Ask(_chat(who.key, model, asked, once=asked), KEPT, billed=False)

    def _odd(self, place: int, who: Tenant, model: str, number: int) -> Ask:
        if place < 84:
            return Ask(_chat(who.key, model, number, stream=True), RIGHT, leaves=True)
        if place < 85:
            return Ask(_chat(generate("live").text, model, number), WRONG_KEY)
        if place < 88:
            return Ask(_chat(f"sk-{number}", model, number), WRONG_KEY)
        if place < 91:
            return Ask(_chat(who.key, f"unknown-{number}", number), WRONG_MODEL)
        if place < 94:
            return Ask(_request(CHAT, who.key, b'{"model": %d' % number), WRONG_BODY)
        if place < 96:
            return Ask(_chat(self._limited.key, BASE, number), RATED)
        if place < 97:
            return Ask(_request(f"/v1/nothing/{number}", who.key, b"{}"), WRONG_MODEL)
        return Ask(_models(who.key), RIGHT, billed=False)


def _chat(
    key: str, model: str, number: int, *, stream: bool = False, user: str = "", once: int = 0
) -> bytes:
    text = f"{number} " + "The quick brown fox " * SENTENCES
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": STREAMED_TOKENS if stream else 1,
        "stream": stream,
        "ignore_eos": True,
        **({"user": user} if user else {}),
    }
    return _request(CHAT, key, orjson.dumps(body), f"idempotency-key: {once}\r\n" if once else "")


def _completion(key: str, model: str, number: int) -> bytes:
    text = f"{number} " + "The quick brown fox " * SENTENCES
    body = {"model": model, "prompt": text, "max_tokens": 2, "ignore_eos": True}
    return _request(COMPLETION, key, orjson.dumps(body))


def _models(key: str) -> bytes:
    return f"GET /v1/models HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\r\n".encode()


def _request(path: str, key: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body
