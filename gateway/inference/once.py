"""``Idempotency-Key``: a request that is sent again gets the answer it got, and is billed once.

The key and the body must be the same. A request with a key is finished also when its client has
left, so that there is something to give when it comes back. What failed is not kept: sent again,
it is tried again.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from gateway.errors import IdempotencyAnswerGone, InvalidRequest
from gateway.http import Reply, Request
from gateway.idempotency.answers import Answers, Claim, Kept
from gateway.usage.record import Outcome

HEADER = b"idempotency-key"
SHAPE = re.compile(rb"[\x21-\x7e]{1,255}")
REPLAYED = "idempotent-replayed"


def key_of(request: Request) -> bytes:
    """Raises InvalidRequest."""
    values = request.headers(HEADER)
    key = values[0].strip(b" \t")
    if len(values) > 1 or SHAPE.fullmatch(key) is None:
        raise InvalidRequest(
            "Send one Idempotency-Key of 1 to 255 visible ASCII characters.",
            param="Idempotency-Key",
        )
    return key


class Patient:
    """A request whose body is read, and whose client may leave. An ``Asked``."""

    def __init__(self, request: Request, body: bytes) -> None:
        self._request = request
        self._body = body

    def header(self, name: bytes) -> bytes:
        return self._request.header(name)

    async def json_body(self, limit: int) -> bytes:
        return self._body

    def until_gone(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


class Tape:
    """Hears an answer while it is sent, and has it kept before its client can have all of it."""

    def __init__(self, claim: Claim, answers: Answers, reply: Reply) -> None:
        self._claim, self._answers, self._reply = claim, answers, reply
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        self._parts.append(part)

    async def end(self, part: bytes) -> None:
        facts = self._reply.facts
        if facts.get("outcome") == Outcome.COMPLETED and "error" not in facts:
            answer = Kept.of(self._reply.kind, b"".join((*self._parts, part)))
            await self._answers.keep(self._claim, answer)


async def give(
    claim: Claim, answers: Answers, reply: Reply, work: Callable[[], Awaitable[None]]
) -> None:
    """Answer for the first time."""
    reply.tape = Tape(claim, answers, reply)
    try:
        await work()
    finally:
        reply.tape = None
        await answers.release(claim)


async def replay(answer: Kept, reply: Reply) -> None:
    """Raises IdempotencyAnswerGone."""
    if answer.packed is None:
        raise answer_gone("was too large to be kept")
    reply.headers[REPLAYED] = "true"
    await reply.whole(answer.body, {"content-type": answer.kind})


def answer_gone(why: str) -> IdempotencyAnswerGone:
    return IdempotencyAnswerGone(
        f"This request was answered; its answer {why}.", param="Idempotency-Key"
    )
