"""How people are called and reached."""

import re

from gateway.errors import InvalidRequest

MOST_NAME = 128
_ADDRESS = re.compile(r"[\x21-\x7e]{1,64}@[\x21-\x7e]{1,189}", re.ASCII)


def checked_email(text: str) -> str:
    """In lower case. Raises InvalidRequest."""
    if not _ADDRESS.fullmatch(text):
        raise InvalidRequest("email is not an e-mail address", param="email")
    return text.lower()


def checked_person(name: str) -> str:
    """Raises InvalidRequest."""
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise InvalidRequest(f"name: 1 to {MOST_NAME} printable characters", param="name")
    return name
