"""An input file is right, or every reason why not is told with its line."""

import io
import json

import pytest

from gateway.batches.lines import MOST_ERRORS, MOST_LINES, check_input, raw_lines, read_line
from tests.gateway.batching import CHAT, line
from tests.gateway.serving import BASE

LIMIT = 1 << 10


def findings(data: bytes, most: int = MOST_LINES):
    known = {BASE, "support"}.__contains__
    return check_input(io.BytesIO(data), CHAT, limit=LIMIT, known=known, most=most)


def joined(*lines: object) -> bytes:
    return b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode()
                      for each in lines)  # fmt: skip


BROKEN = {
    "no JSON": (b'{"custom_id": ', "invalid_json_line", None),
    "not UTF-8": (b'{"custom_id": "\xff"}', "invalid_json_line", None),
    "a number too large": (b'{"custom_id": 123456789012345678901}', "invalid_value", "custom_id"),
    "not an object": (b"[]", "invalid_type", None),
    "no custom_id": ({**line(2), "custom_id": None}, "missing_required_parameter", "custom_id"),
    "an empty custom_id": ({**line(2), "custom_id": ""}, "missing_required_parameter", "custom_id"),
    "a custom_id of control": ({**line(2), "custom_id": "a\n"}, "invalid_value", "custom_id"),
    "a custom_id of digits": ({**line(2), "custom_id": 5}, "invalid_type", "custom_id"),
    "a custom_id again": (line(1), "duplicate_custom_id", "custom_id"),
    "no method": ({**line(2), "method": None}, "missing_required_parameter", "method"),
    "another method": ({**line(2), "method": "GET"}, "invalid_method", "method"),
    "another url": ({**line(2), "url": "/v1/completions"}, "invalid_url", "url"),
    "no body": ({**line(2), "body": None}, "missing_required_parameter", "body"),
    "a body of text": ({**line(2), "body": "x"}, "invalid_type", "body"),
    "no model": (line(2, model=None), "missing_required_parameter", "body.model"),
    "nobody's model": (line(2, model="none"), "model_not_found", "model"),
    "a stream": (line(2, stream=True), "invalid_value", "body.stream"),
    "too long a line": (b"{" * (LIMIT + 1), "line_too_long", None),
    "very long a line": (b"{" * (5 * LIMIT), "line_too_long", None),
}


@pytest.mark.parametrize(("bad", "code", "param"), BROKEN.values(), ids=BROKEN.keys())
def test_a_line_that_is_not_right_is_told_with_its_number(bad, code, param):
    found = findings(joined(line(1), b"  ", bad, line(3)))
    assert found.lines == 3
    (error,) = found.errors
    assert (error["line"], error["code"], error["param"]) == (3, code, param)
    assert len(error["message"]) < 300


def test_models_may_differ_and_the_last_line_needs_no_end():
    found = findings(joined(line(1), line(2, model="support")))
    assert (found.errors, found.lines, found.model) == ([], 2, None)
    assert findings(joined(line(1)) + b"\r\n").model == BASE


@pytest.mark.parametrize("data", [b"", b"\n", b" \n\t\n"])
def test_a_file_without_a_line_is_empty(data):
    assert [error["code"] for error in findings(data).errors] == ["empty_file"]


def test_only_so_many_errors_are_told():
    assert len(findings(b"x\n" * 3 * MOST_ERRORS).errors) == MOST_ERRORS


def test_a_file_has_so_many_lines_at_most():
    data = joined(*(line(number) for number in range(5)))
    assert [e["code"] for e in findings(data, most=4).errors] == ["request_limit_exceeded"]
    assert findings(data, most=5).errors == []


def test_a_body_goes_on_as_it_was_written():
    text = json.dumps(line(1, messages=[{"role": "user", "content": "häß 🙂\u0001"}]))
    (raw,) = raw_lines(io.BytesIO(text.encode()), LIMIT)
    assert json.loads(read_line(raw, CHAT, LIMIT).body) == json.loads(text)["body"]
