"""``POST /v1/responses`` on its way in: what it goes on from, then a chat like any other."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from msgspec import structs

from gateway.errors import InvalidRequest
from gateway.identity.principal import Principal
from gateway.inference.body import Object
from gateway.inference.order import Order
from gateway.inference.pipeline import Endpoint
from gateway.inference.responding import Responding
from gateway.inference.support import require_known
from gateway.inference.tokenizer import Tokenizer
from gateway.responses.archive import Archive, Terms
from gateway.responses.frames import ResponseFrames
from gateway.responses.reading import IGNORED, read_response, renamed

UNKEPT = Terms((), timedelta())
Chat = Callable[[Object, Principal, str], Awaitable[Order]]


class ResponseEndpoint:
    """Belongs to one event loop."""

    def __init__(self, chat: Chat, archive: Archive) -> None:
        self._chat, self._archive = chat, archive

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self._take, self._frames)

    async def count(self, body: Object, principal: Principal) -> dict[str, Any]:
        """How many tokens such a request would be, the conversation before it included."""
        order = await self._take({**body, "store": False}, principal, "")
        return {"object": "response.input_tokens", "input_tokens": order.prompt_tokens}

    async def _take(self, body: Object, principal: Principal, request: str) -> Order:
        asked = read_response(body)
        if principal.strict:
            require_known([name for name in asked.ignored if name not in IGNORED])
        terms = UNKEPT
        if asked.store or asked.previous is not None:
            terms = await self._archive.terms(principal, asked.previous)
        try:
            order = await self._chat(asked.chat_body(terms.before), principal, request)
        except InvalidRequest as error:
            raise renamed(error) from error
        ignored = (*asked.ignored, *(name for name in order.options.ignored if name in body))
        responding = Responding(
            settings={**asked.settings, **_chosen(body, order)},
            items=asked.items,
            before=terms.before,
            previous=asked.previous,
            store=asked.store and terms.kept_for > timedelta(),
            kept_for=terms.kept_for,
        )
        options = structs.replace(order.options, ignored=ignored)
        return structs.replace(order, options=options, responding=responding)

    def _frames(self, order: Order, tokenizer: Tokenizer, *, created: int) -> ResponseFrames:
        return ResponseFrames(order, tokenizer, created=created, archive=self._archive)


def _chosen(body: Object, order: Order) -> dict[str, float]:
    """What holds because nothing was said: the base's makers may recommend something."""
    sampling = order.options.sampling
    holds = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return {name: value for name, value in holds.items() if body.get(name) is None}
