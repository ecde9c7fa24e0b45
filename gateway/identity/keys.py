"""What an API key looks like, and how one is recognised without being kept.

    sk-live-<22 base62: public id>-<32 base62: secret><6 base62: CRC-32 of all before it>

The prefix lets secret scanners find it, the checksum refuses typing errors and junk before any
hash is computed, and the public id finds the row. Only HMAC-SHA256(pepper, key) is stored: the
secret has 190 bits, so a slow password hash would add nothing but milliseconds.
"""

import hmac
import re
import secrets
import zlib
from dataclasses import dataclass

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PUBLIC_LENGTH = 22
SECRET_LENGTH = 32
CHECKSUM_LENGTH = 6
ADMIN = "admin"  # the environment of admin keys
MAX_LENGTH = 128  # nothing longer is looked at

ENVIRONMENT = re.compile(r"[A-Za-z0-9]{1,16}", re.ASCII)

_SHAPE = re.compile(
    rf"sk-({ENVIRONMENT.pattern})-([0-9A-Za-z]{{{PUBLIC_LENGTH}}})"
    rf"-[0-9A-Za-z]{{{SECRET_LENGTH}}}([0-9A-Za-z]{{{CHECKSUM_LENGTH}}})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Key:
    """A well-formed key. Its text is secret; ``id`` and ``last4`` are not."""

    text: str
    environment: str
    public: str

    @property
    def id(self) -> str:
        return f"key_{self.public}"

    @property
    def last4(self) -> str:
        return self.text[-4:]

    @property
    def is_admin(self) -> bool:
        return self.environment == ADMIN

    def __repr__(self) -> str:
        return f"Key({self.id})"

    def hash(self, pepper: bytes) -> str:
        return hmac.digest(pepper, self.text.encode(), "sha256").hex()


def generate(environment: str) -> Key:
    """A new random key: the only time its text exists outside its holder's hands."""
    public = _random(PUBLIC_LENGTH)
    body = f"sk-{environment}-{public}-{_random(SECRET_LENGTH)}"
    return Key(body + _checksum(body), environment, public)


def parse(text: str) -> Key | None:
    """None unless the text has a key's shape and its checksum is right."""
    if len(text) > MAX_LENGTH:
        return None
    match = _SHAPE.fullmatch(text)
    if match is None or match[3] != _checksum(text[:-CHECKSUM_LENGTH]):
        return None
    return Key(text, match[1], match[2])


def _random(length: int) -> str:
    return "".join(secrets.choice(BASE62) for _ in range(length))


def _checksum(body: str) -> str:
    value, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, 62)
        digits = BASE62[digit] + digits
    return digits
