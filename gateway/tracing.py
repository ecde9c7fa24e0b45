"""Spans of requests, from HTTP to the engines: OpenTelemetry, by its names for generative AI.

A client's W3C ``traceparent`` is gone on with. The inference span's own goes to the engine with the
request. Neither prompts, answers nor keys are in a span: facts of the log line alone.
"""

from typing import Any

from gateway.http import Fact, Request

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}
SYSTEM = "loratorio"
# The log's names -> those of OpenTelemetry.
NAMES = {
    "model": "gen_ai.response.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "outcome": "loratorio.outcome",
    "project": "loratorio.project.id",
    "key": "loratorio.key.id",  # its public id
    "error": "error.type",
}


class Tracing:
    """Belongs to one event loop. ``provider``: OpenTelemetry's, see ``engine.otlp``."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self.tracer = provider.get_tracer("loratorio.gateway")
        self.propagator = TraceContextTextMapPropagator()
        self.server, self.internal = SpanKind.SERVER, SpanKind.INTERNAL
        self.within = set_span_in_context

    def begin(self, request: Request, route: str, request_id: str) -> "Trace":
        carrier = {
            name: request.header(name.encode()).decode("latin-1")
            for name in ("traceparent", "tracestate")
        }
        span = self.tracer.start_span(
            f"{request.method} {route}",
            self.propagator.extract(carrier),
            kind=self.server,
            attributes={
                "http.request.method": request.method,
                "http.route": route,
                "loratorio.request.id": request_id,
            },
        )
        return Trace(self, span, OPERATIONS.get(route, "chat"))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class Trace:
    """The spans of one request."""

    __slots__ = ("_inference", "_operation", "_span", "_tracing")

    def __init__(self, tracing: Tracing, span: Any, operation: str) -> None:
        self._tracing, self._span, self._operation = tracing, span, operation
        self._inference: Any = None

    @property
    def id(self) -> str:
        """Of the trace, as tools write it."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def infer(self, model: str, max_tokens: int) -> str:
        """It is admitted. Returns the ``traceparent`` for its engine."""
        self._inference = self._tracing.tracer.start_span(
            f"{self._operation} {model}",
            self._tracing.within(self._span),
            kind=self._tracing.internal,
            attributes={
                "gen_ai.operation.name": self._operation,
                "gen_ai.provider.name": SYSTEM,
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": max_tokens,
            },
        )
        carrier: dict[str, str] = {}
        self._tracing.propagator.inject(carrier, self._tracing.within(self._inference))
        return carrier.get("traceparent", "")

    def end(self, status: int, facts: dict[str, Fact]) -> None:
        """However it ended."""
        told = {NAMES[name]: v for name, v in facts.items() if name in NAMES and v is not None}
        if self._inference is not None:
            finish = facts.get("finish_reason")
            self._inference.set_attributes(
                told | {"gen_ai.response.finish_reasons": [str(finish)] if finish else []}
            )
            self._inference.end()
        self._span.set_attributes(
            {n: v for n, v in told.items() if not n.startswith("gen_ai.")}
            | {"http.response.status_code": int(status)}
        )
        if status >= 500:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)
        self._span.end()
