"""Structured logs: one JSON object a line, bound to request and tenant.

Prompts, answers and keys are never logged: callers log facts, not contents. Should a key slip
into a message all the same, it is blanked here; of an unexpected error the log keeps its type
and its place, for its message may quote what a client sent.
"""

import logging
import re
import traceback
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{8,}")


def configure(stream: TextIO, *, level: int = logging.INFO) -> None:
    """Send everything that is logged in this process to a stream. For ``__main__`` alone.

    Our own lines go straight to it; those of libraries come by way of ``logging``.
    """
    finish: list[Processor] = [_place_of_error, _blank_keys, _SERIALISE]
    structlog.configure(
        processors=[structlog.stdlib.add_log_level, _STAMP, *finish],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, _STAMP
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )  # fmt: skip
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def logger(name: str) -> FilteringBoundLogger:
    """A logger that takes facts as keywords; ``bind`` adds some to every line."""
    bound: FilteringBoundLogger = structlog.get_logger(source=name)
    return bound


def _place_of_error(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    info = event.pop("exc_info", None)
    if not info:
        return event
    error = info if isinstance(info, BaseException) else info[1]
    if error is not None:
        event["error_type"] = type(error).__name__
        event["error_place"] = "".join(traceback.format_tb(error.__traceback__))
    return event


def _blank_keys(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _KEY.sub("sk-…", value)
    return event


def _serialise(event: EventDict, **_: Any) -> str:
    return orjson.dumps(event, default=str).decode()


_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True, key="at")
_SERIALISE = structlog.processors.JSONRenderer(serializer=_serialise)
