"""Which names people may give to tenants, keys and adapters."""

import re

from gateway.errors import InvalidRequest

# Nothing that a path, a header, a shell or `alias@version` could read otherwise.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def checked_name(value: str, *, param: str) -> str:
    """Raises InvalidRequest."""
    if _NAME.fullmatch(value) is None:
        raise InvalidRequest(
            f"{param} {value[:80]!r}: use 1 to 64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit",
            param=param,
        )
    return value
