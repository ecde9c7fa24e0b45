"""Structured logs: one JSON object a line, bound to request and tenant.

Prompts, answers and keys are never logged: callers log facts, not contents. Should a key slip
into a message all the same, it is blanked here; of an unexpected error the log keeps its type
and its place, for its message may quote what a client sent.
"""

import logging
import re
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{8,}")


def configure(stream: TextIO, *, level: int = logging.INFO) -> None:
    """Send everything that is logged in this process to a stream. For ``__main__`` alone.

    Our own lines go straight to it; those of libraries come by way of ``logging``.
    """
    structlog.configure(
        processors=[_line],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _told],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def logger(name: str) -> FilteringBoundLogger:
    """A logger that takes facts as keywords; ``bind`` adds some to every line."""
    bound: FilteringBoundLogger = structlog.get_logger(source=name)
    return bound


def liner(name: str) -> Callable[[str, EventDict], None]:
    """For what is said of every request: an event and its facts, which become the line's, straight
    to where the other lines go. Logged as information."""
    if not logger(name).bind().is_enabled_for(logging.INFO):
        return lambda event, facts: None
    write = structlog.get_config()["logger_factory"]().msg

    def line(event: str, facts: EventDict) -> None:
        facts["source"], facts["event"], facts["level"] = name, event, "info"
        write(_text(facts))

    return line


def _line(_logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One step from facts to text: there is a line for every request."""
    event["level"] = method
    return _text(event)


def _told(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return _text(event)


def _text(event: EventDict) -> str:
    if info := event.pop("exc_info", None):
        _name_place(event, info)
    event["at"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    text = orjson.dumps(event, default=str).decode()
    if "sk-" in text:
        blank = {n: _KEY.sub("sk-…", v) if isinstance(v, str) else v for n, v in event.items()}
        text = orjson.dumps(blank, default=str).decode()
    return text


def _name_place(event: EventDict, info: Any) -> None:
    error = info if isinstance(info, BaseException) else info[1]
    if error is not None:
        event["error_type"] = type(error).__name__
        event["error_place"] = "".join(traceback.format_tb(error.__traceback__))
