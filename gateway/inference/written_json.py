"""JSON inside a text: arguments of a call, as a model wrote them or a client sends them back.

The standard parser takes more than JSON: NaN, and escapes of lone surrogates, which nothing behind
it can write down again. Both are no JSON here, and neither is what nests without end.
"""

import json
from typing import Any, NoReturn

from gateway.inference.body import SURROGATE, strings


def parsed(text: str) -> Any:
    """Raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if "\\u" in text and any(SURROGATE.search(part) for _, part in strings(value)):
        raise ValueError("a lone surrogate")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
