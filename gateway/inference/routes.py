"""The hot routes as one raw ASGI application; every other path goes to the application behind.

This is the one HTTP handler: here an error becomes an answer, and one line of log says how each
request ended.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import orjson

from gateway.catalog.target import Target
from gateway.errors import GatewayError, MethodNotAllowed, PermissionDenied
from gateway.health import Health
from gateway.http import (
    Asgi,
    ClientGone,
    Message,
    Receive,
    Reply,
    Request,
    Scope,
    Send,
    body_patience,
)
from gateway.identity.principal import Principal
from gateway.ids import new_id
from gateway.inference.body import Object
from gateway.inference.creation import Creations
from gateway.inference.embedding_frames import EmbeddingFrames
from gateway.inference.frames import ChatFrames, CompletionFrames, error_frames
from gateway.inference.intakes import Reads
from gateway.inference.pipeline import Endpoint, Pipeline
from gateway.inference.services import Services
from gateway.inference.tokenization import Tokenization
from gateway.log import liner, logger

LOG = "gateway.request"
MODEL = "/v1/models/"
CLIENT_GONE = 499  # for log and metrics; nobody is there to receive it

Handler = Callable[[Request, Reply], Awaitable[None]]


class Names(Protocol):
    def resolve(self, principal: Principal, name: str) -> Target: ...

    def models(self, principal: Principal) -> list[Target]: ...


class Responses(Protocol):
    @property
    def endpoint(self) -> Endpoint: ...

    async def count(self, body: Object, principal: Principal) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Route:
    name: str  # as metrics call it
    methods: tuple[str, ...]
    handle: Handler


class Routes:
    """Belongs to one event loop."""

    def __init__(
        self,
        services: Services,
        intake: Reads,
        names: Names,
        *,
        tokenization: Tokenization,
        responses: Responses | None = None,
        health: Health,
        behind: Asgi,
    ) -> None:
        self._do = services
        self._names = names
        self._health = health
        self._behind = Creations(behind, services.answers, services.gate.identify)
        self._pipeline = Pipeline(services)
        self._chat = Endpoint(intake.chat, ChatFrames)
        self._tokenization = tokenization
        self._responses = responses
        self._completion = Endpoint(intake.completion, CompletionFrames)
        self._embedding = Endpoint(intake.embedding, EmbeddingFrames)
        self._log = logger(LOG)
        self._line = liner(LOG)
        self._patience = body_patience()
        self._one_model = Route("/v1/models/{model}", ("GET", "HEAD"), self._model)
        self._routes = {
            "/v1/chat/completions": Route("/v1/chat/completions", ("POST",), self._chats),
            "/v1/completions": Route("/v1/completions", ("POST",), self._completions),
            "/v1/embeddings": Route("/v1/embeddings", ("POST",), self._embeddings),
            "/v1/models": Route("/v1/models", ("GET", "HEAD"), self._models),
            "/tokenize": Route("/tokenize", ("POST",), self._tokenize),
            "/detokenize": Route("/detokenize", ("POST",), self._detokenize),
            "/tokenizer_info": Route("/tokenizer_info", ("GET", "HEAD"), self._tokenizer),
            "/healthz": Route("/healthz", ("GET", "HEAD"), self._alive),
            "/readyz": Route("/readyz", ("GET", "HEAD"), self._ready),
        }

        if responses is not None:
            for path, handle in (("", self._respond), ("/input_tokens", self._count_input)):
                name = f"/v1/responses{path}"
                self._routes[name] = Route(name, ("POST",), handle)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._find(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._beyond(scope, receive, send)
            return
        request = Request(scope, receive, self._patience)
        reply = Reply(send, new_id("req"), request.client)
        if self._do.tracing is not None and "POST" in route.methods:
            reply.trace = self._do.tracing.begin(request, route.name, reply.request_id)
            reply.facts["trace"] = reply.trace.id  # so that a log line finds its spans
        try:
            request.require_method(*route.methods)
            await route.handle(request, reply)
        except ClientGone:
            reply.status = CLIENT_GONE
        except GatewayError as error:
            reply.facts["error"] = error.detail_code
            self._note(reply, route, error)
            await self._show_limits(request, reply, error)
            await _tell_failure(reply, error)
        except Exception as error:
            self._do.metrics.faults.total += 1
            self._log.error("unexpected error", request=reply.request_id, exc_info=error)
            fault = GatewayError("The server had an error; it was logged.")
            self._note(reply, route, fault)
            await _tell_failure(reply, fault)
        self._tell(request, reply, route)

    async def _beyond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._behind(scope, receive, self._told_more(scope, receive, send))
        except Exception as error:  # answered already
            self._do.metrics.faults.total += 1
            self._log.error("unexpected error", path=scope.get("path", "")[:64], exc_info=error)

    def _find(self, path: str) -> Route | None:
        if path.startswith(MODEL) and len(path) > len(MODEL):
            return self._one_model
        return self._routes.get(path)

    def _note(self, reply: Reply, route: Route, error: GatewayError) -> None:
        """In the request log of its project, where it is known; what was admitted is there."""
        if reply.caller is not None and not reply.admitted:
            self._do.refusals.note(
                reply.caller,
                error,
                endpoint=_endpoint(route),
                model=reply.asked,
                request=reply.request_id,
            )

    def _tell(self, request: Request, reply: Reply, route: Route) -> None:
        self._do.metrics.count_answer(route.name, reply.status, broken=reply.broken)
        if reply.trace is not None:
            reply.trace.end(reply.status, reply.facts)
        if route.handle in (self._alive, self._ready):
            return  # asked every few seconds
        facts = {
            "request": reply.request_id,
            "method": request.method,
            "route": route.name,
            "status": int(reply.status),
            "seconds": round(reply.elapsed_s, 4),
            **reply.facts,
        }
        self._line("request", facts)

    def _chats(self, request: Request, reply: Reply) -> Awaitable[None]:
        return self._pipeline.serve(request, reply, self._chat)

    def _completions(self, request: Request, reply: Reply) -> Awaitable[None]:
        return self._pipeline.serve(request, reply, self._completion)

    def _embeddings(self, request: Request, reply: Reply) -> Awaitable[None]:
        return self._pipeline.serve(request, reply, self._embedding)

    async def _respond(self, request: Request, reply: Reply) -> None:
        assert self._responses is not None, "there is no such route without it"
        await self._pipeline.serve(request, reply, self._responses.endpoint)

    async def _count_input(self, request: Request, reply: Reply) -> None:
        assert self._responses is not None, "there is no such route without it"
        await self._pipeline.tell(request, reply, self._responses.count)

    async def _models(self, request: Request, reply: Reply) -> None:
        principal = await self._caller(request, reply)
        models = [_model(target) for target in self._names.models(principal)]
        await reply.json(orjson.dumps({"object": "list", "data": models}))

    async def _model(self, request: Request, reply: Reply) -> None:
        principal = await self._caller(request, reply)
        reply.asked = request.path.removeprefix(MODEL)
        target = self._names.resolve(principal, reply.asked)
        await reply.json(orjson.dumps(_model(target)))

    async def _tokenize(self, request: Request, reply: Reply) -> None:
        await self._pipeline.tell(request, reply, self._tokenization.tokens)

    async def _detokenize(self, request: Request, reply: Reply) -> None:
        await self._pipeline.tell(request, reply, self._tokenization.text)

    async def _tokenizer(self, request: Request, reply: Reply) -> None:
        await self._caller(request, reply)
        await reply.json(orjson.dumps(self._tokenization.info()))

    async def _caller(self, request: Request, reply: Reply) -> Principal:
        principal = await self._do.gate.enter(request, reply)
        headroom = await self._do.limiter.headroom(principal)
        reply.headers.update(headroom.headers())
        return principal

    def _told_more(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """The others' answers carry an id, and what is left of the caller's limits."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = {"x-request-id": new_id("req")}
                if message["status"] != HTTPStatus.UNAUTHORIZED:  # a key was just looked for
                    more |= await self._limits(scope, receive)
                raw = [(name.encode(), value.encode()) for name, value in more.items()]
                message = {**message, "headers": [*message.get("headers", ()), *raw]}
            await send(message)

        return sending

    async def _limits(self, scope: Scope, receive: Receive) -> dict[str, str]:
        """Nothing for who is not known, and where no key is asked for."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            return {}
        return await self._left(Request(scope, receive))

    async def _left(self, request: Request) -> dict[str, str]:
        try:
            principal = await self._do.gate.recognise(request)
            return (await self._do.limiter.headroom(principal)).headers()
        except GatewayError:
            return {}

    async def _show_limits(self, request: Request, reply: Reply, error: GatewayError) -> None:
        """Whoever has a key is told what is left, also where nothing was counted: where the key
        is not for this path, or the path not for this method."""
        if isinstance(error, PermissionDenied | MethodNotAllowed):
            for name, value in (await self._left(request)).items():
                reply.headers.setdefault(name, value)

    async def _alive(self, request: Request, reply: Reply) -> None:
        await reply.json(b'{"alive":true}')

    async def _ready(self, request: Request, reply: Reply) -> None:
        ready = self._health.ready
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        await reply.json(orjson.dumps(self._health.report()), status)


def _endpoint(route: Route) -> str:
    """As the ledger calls it."""
    return route.name.removeprefix("/v1").partition("/{")[0].strip("/").replace("/", ".")


async def _tell_failure(reply: Reply, error: GatewayError) -> None:
    if reply.begun:
        await reply.end(error_frames(error))
    else:
        await reply.error(error)


def _model(target: Target) -> dict[str, Any]:
    return {
        "id": target.public_name,
        "object": "model",
        "created": target.created,
        "owned_by": target.owner,
    }
