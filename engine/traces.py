"""Spans of what an engine did for one choice: how long it waited, its prompt, its answer.

They belong to the trace whose ``traceparent`` came with the request, and say neither tokens nor
texts, only how many. Written by the engine loop, once, when a choice has ended.
"""

import time
from typing import Any

from engine.course import Course
from engine.protocol import Finish, Submit

NANO = 10**9


class RequestTraces:
    """``provider``: OpenTelemetry's, see ``otlp.py``."""

    def __init__(self, provider: Any, engine: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("loratorio.engine")
        self._context = TraceContextTextMapPropagator().extract
        self._engine = engine

    def ended(self, submit: Submit, course: Course, now: float, finish: Finish) -> None:
        """``now``: of the clock that the course is written by."""
        parent = self._context({"traceparent": submit.traceparent})
        zero = time.time_ns() - int(now * NANO)  # the wall clock at that clock's 0
        facts = {
            "loratorio.request.id": submit.request,
            "loratorio.engine": self._engine,
            "loratorio.adapter.digest": submit.adapter.digest if submit.adapter else "",
            "loratorio.finish": finish.value,
        }
        for name, begun, over in (
            ("engine.queue", course.arrived, course.started or now),
            ("engine.prefill", course.started, course.first or now),
            ("engine.decode", course.first, course.last),
        ):
            if begun is not None and over is not None:
                span = self._tracer.start_span(
                    name, parent, attributes=facts, start_time=zero + int(begun * NANO)
                )
                span.end(zero + int(over * NANO))
