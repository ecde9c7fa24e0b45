"""Several bases, each with its own tokenizer and template: a request is read by its base's."""

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Protocol

from gateway.errors import GatewayError
from gateway.identity.principal import Principal
from gateway.inference.body import Object
from gateway.inference.intake import Intake, Names, subject_of
from gateway.inference.order import Order

Reading = Awaitable[Order]


class Reads(Protocol):
    """Its methods raise ModelNotFound, BaseNotServed, InvalidRequest, NoEngine."""

    def chat(self, body: Object, principal: Principal, request_id: str) -> Reading: ...

    def completion(self, body: Object, principal: Principal, request_id: str) -> Reading: ...

    def embedding(self, body: Object, principal: Principal, request_id: str) -> Reading: ...


class Intakes:
    def __init__(self, names: Names, by_base: Mapping[str, Intake]) -> None:
        """``by_base``: the first reads what names no model that there is, and refuses it."""
        self._names, self._by_base = names, by_base

    def chat(self, body: Object, principal: Principal, request_id: str) -> Reading:
        return self._of(body, principal).chat(body, principal, request_id)

    def completion(self, body: Object, principal: Principal, request_id: str) -> Reading:
        return self._of(body, principal).completion(body, principal, request_id)

    def embedding(self, body: Object, principal: Principal, request_id: str) -> Reading:
        return self._of(body, principal).embedding(body, principal, request_id)

    def _of(self, body: Object, principal: Principal) -> Intake:
        """The same base that the intake finds: nothing is awaited between the two looks."""
        first, name = next(iter(self._by_base.values())), body.get("model")
        if len(self._by_base) == 1 or not isinstance(name, str):
            return first
        try:
            target = self._names.resolve(principal, name, partial(subject_of, body))
        except GatewayError:
            return first
        return self._by_base[target.base_model]
