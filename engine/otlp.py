"""Where spans go: an OpenTelemetry collector, by OTLP over HTTP, in the background.

Nothing of OpenTelemetry is imported before somebody names a collector.
"""

from typing import Any
from urllib.parse import urlsplit

TRACES = "/v1/traces"


class TracingUnavailable(ValueError):
    """The collector's address is none, or what sends to it is not installed."""


def open_provider(endpoint: str, service: str) -> Any:
    """A TracerProvider; ``shutdown`` sends what is left. Raises TracingUnavailable."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TracingUnavailable(f"otlp_endpoint: {endpoint[:80]!r} does not begin with http://")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable(
            "otlp_endpoint needs OpenTelemetry: pip install 'loratorio[otel]'"
        ) from error
    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint.rstrip("/") + TRACES)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
