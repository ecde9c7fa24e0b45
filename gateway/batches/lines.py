"""The lines of an input file: what each must say, and every reason why one does not. Pure.

A line is an object with ``custom_id``, unique in the file, ``method`` POST, the batch's endpoint as
``url`` and a ``body`` as the endpoint takes it. Numbers are those of the file, from 1; lines of
white space alone are passed over. What only the endpoint can tell is told by the line's answer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import orjson

from gateway.errors import GatewayError, InvalidRequest, ModelNotFound
from gateway.inference.body import parse_object
from gateway.inference.fields import Fields, missing

MOST_LINES = 50_000
MOST_ERRORS = 100  # that are told
METHOD = "POST"


@dataclass(frozen=True, slots=True)
class Raw:
    number: int
    text: bytes | None  # None: longer than a line may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    number: int
    custom_id: str
    model: str
    body: bytes


@dataclass(slots=True)
class Findings:
    """What reading a whole input file brought."""

    lines: int = 0
    models: set[str] = field(default_factory=set)
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> str | None:
        return next(iter(self.models)) if len(self.models) == 1 else None

    def refuse(self, error: GatewayError, line: int | None) -> None:
        self.errors.append(
            {
                "code": error.detail_code or "invalid_json_line",
                "message": error.message,
                "param": error.param,
                "line": line,
            }
        )


def raw_lines(source: BinaryIO, limit: int) -> Iterator[Raw]:
    """``limit``: bytes of a line."""
    number = 0
    while piece := source.readline(limit + 1):
        number += 1
        whole = piece.endswith(b"\n") or len(piece) <= limit
        while not piece.endswith(b"\n") and (more := source.readline(limit + 1)):
            whole, piece = False, more
        if not whole:
            yield Raw(number, None)
        elif piece.strip():
            yield Raw(number, piece)


def read_line(raw: Raw, endpoint: str, limit: int) -> Line:
    """Raises GatewayError naming the field."""
    if raw.text is None:
        raise InvalidRequest(f"The line has more than {limit} bytes.", code="line_too_long")
    value = parse_object(raw.text)
    fields = Fields(value)
    custom_id = fields.name("custom_id")
    if not custom_id:
        raise missing("custom_id")
    _require(fields, "method", METHOD)
    _require(fields, "url", endpoint)
    body = fields.object("body")
    if body is None:
        raise missing("body")
    model = body.name("model")
    if not model:
        raise missing("body.model")
    if body.flag("stream"):
        raise InvalidRequest("A line of a batch cannot be streamed.", param="body.stream")
    return Line(
        number=raw.number, custom_id=custom_id, model=model, body=orjson.dumps(value["body"])
    )


def check_input(
    source: BinaryIO,
    endpoint: str,
    *,
    limit: int,
    known: Callable[[str], bool],
    most: int = MOST_LINES,
) -> Findings:
    """Reads it all; takes as long as it is. ``known``: whether there is a model of this name."""
    findings, first = Findings(), dict[str, int]()
    for raw in raw_lines(source, limit):
        findings.lines += 1
        if findings.lines > most:
            findings.refuse(_too_many(most), raw.number)
        else:
            _check(raw, endpoint, limit, known, findings=findings, first=first)
        if len(findings.errors) == MOST_ERRORS or findings.lines > most:
            break
    if not findings.lines:
        findings.refuse(InvalidRequest("The file holds no line.", code="empty_file"), None)
    return findings


def _check(
    raw: Raw,
    endpoint: str,
    limit: int,
    known: Callable[[str], bool],
    *,
    findings: Findings,
    first: dict[str, int],
) -> None:
    try:
        line = read_line(raw, endpoint, limit)
    except GatewayError as error:
        findings.refuse(error, raw.number)
        return
    before = first.setdefault(line.custom_id, raw.number)
    if before != raw.number:
        findings.refuse(_twice(line.custom_id, before), raw.number)
    if line.model not in findings.models:
        if not known(line.model):
            findings.refuse(ModelNotFound(line.model), raw.number)
            return
        findings.models.add(line.model)


def _require(fields: Fields, name: str, wanted: str) -> None:
    found = fields.name(name)
    if found is None:
        raise missing(name)
    if found != wanted:
        raise InvalidRequest(
            f"{name} is {found[:64]!r}; it must be {wanted!r}.", param=name, code=f"invalid_{name}"
        )


def _twice(custom_id: str, line: int) -> InvalidRequest:
    return InvalidRequest(
        f"custom_id {custom_id[:64]!r} is that of line {line} already.",
        param="custom_id",
        code="duplicate_custom_id",
    )


def _too_many(most: int) -> InvalidRequest:
    return InvalidRequest(f"The file has more than {most} lines.", code="request_limit_exceeded")
