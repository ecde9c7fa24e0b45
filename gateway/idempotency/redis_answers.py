"""Answers in Redis: one key means one request, whichever gateway is asked.

Without Redis a key cannot be kept, so a request that has one is refused: its client asked not to
be served twice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway import redis as names
from gateway.errors import IdempotencyUnavailable
from gateway.idempotency.answers import (
    CLAIM_S,
    KEEP_S,
    MOST_ANSWERS,
    RENEW_S,
    Claim,
    Kept,
    found,
)
from gateway.patience import Patience
from gateway.redis import Script

log = logging.getLogger(__name__)
KEPT = b"kept"
MOST_STRAYS = 1000


class RedisAnswers:
    """Shares its client with others, and does not close it."""

    def __init__(self, redis: Redis, *, deadline_s: float) -> None:
        self._redis = redis
        self._patience = Patience(deadline_s)
        self._claimed: dict[str, Claim] = {}  # by owner
        self._strays: deque[Claim] = deque(maxlen=MOST_STRAYS)  # perhaps made, and given up
        self._claim = Script(redis, "gateway.idempotency", "claim.lua")
        self._finish = Script(redis, "gateway.idempotency", "finish.lua")

    async def claim(self, claim: Claim) -> Kept | None:
        """Raises IdempotencyUnavailable."""
        facts = (claim.request, claim.owner, CLAIM_S * 1000, KEEP_S * 1000, MOST_ANSWERS)
        asked = False
        try:
            await self._give_up_strays()
            asked = True
            known: Sequence[Any] = await self._ask(self._claim(_keys(claim), facts))
        except (RedisError, OSError) as error:
            if asked:
                self._strays.append(claim)
            raise IdempotencyUnavailable(
                "An Idempotency-Key cannot be honoured at the moment.", retry_after=1.0
            ) from error
        if not known:
            self._claimed[claim.owner] = claim
            return None
        if len(known) == 1:
            return found(known[0].decode(), claim, None)
        request, kind, state, body = known
        return found(request.decode(), claim, Kept(kind.decode(), body if state == KEPT else None))

    async def _give_up_strays(self) -> None:
        """A Redis that answered too late may have claimed what was asked for: whoever asks again
        must not be told for so long that a request is under way. Raises RedisError, OSError."""
        while self._strays:
            stray = self._strays.popleft()
            try:
                await self._ask(self._finish(_keys(stray), [stray.owner]))
            except (RedisError, OSError):
                self._strays.append(stray)
                raise

    async def keep(self, claim: Claim, answer: Kept) -> None:
        facts = (KEEP_S * 1000, answer.kind, KEPT if answer.packed else b"", answer.packed or b"")
        await self._end(claim, *facts)

    async def release(self, claim: Claim) -> None:
        if claim.owner in self._claimed:
            await self._end(claim)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            pipe = self._redis.pipeline(transaction=False)
            for claim in self._claimed.values():
                pipe.pexpire(_keys(claim)[0], CLAIM_S * 1000)
            try:
                await self._ask(pipe.execute())
            except (RedisError, OSError) as error:
                log.info("claims not renewed: %s", error)

    async def _end(self, claim: Claim, *facts: str | int | bytes) -> None:
        """Where Redis is away the claim falls free by itself."""
        self._claimed.pop(claim.owner, None)
        try:
            await self._ask(self._finish(_keys(claim), [claim.owner, *facts]))
        except (RedisError, OSError) as error:
            log.info("an answer is not kept under its key: %s", error)

    async def _ask(self, question: Coroutine[Any, Any, Any]) -> Any:
        with self._patience.wait():
            return await question


def _keys(claim: Claim) -> list[str]:
    every = names.key(claim.organisation, claim.project, "idempotency")
    return [f"{every}:{claim.name}", every]
