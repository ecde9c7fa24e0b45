"""Passwords of people, kept as argon2id hashes with the parameters of RFC 9106.

One check takes 64 MiB and tens of milliseconds of a core, so checks run in a thread, few at once.
"""

import asyncio
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from gateway.errors import InvalidRequest

LEAST, MOST = 12, 256  # characters
AT_ONCE = 2
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no letter that is taken for another


class Passwords:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._nobodys: str | None = None

    async def hash(self, password: str) -> str:
        """Raises InvalidRequest."""
        check_password(password)
        async with self._turns:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def verify(self, known: str | None, given: str) -> bool:
        """None, for somebody who is not there, takes as long as a wrong password."""
        if len(given) > MOST:
            return False
        async with self._turns:
            if known is None and self._nobodys is None:
                self._nobodys = await asyncio.to_thread(self._hasher.hash, secrets.token_hex())
            right = await asyncio.to_thread(self._matches, known or self._nobodys or "", given)
        return right and known is not None

    def is_outdated(self, known: str) -> bool:
        """Made with weaker parameters than those of today."""
        return self._hasher.check_needs_rehash(known)

    def _matches(self, known: str, given: str) -> bool:
        try:
            return self._hasher.verify(known, given)
        except (VerificationError, InvalidHashError):
            return False


def check_password(password: str) -> None:
    """Raises InvalidRequest."""
    if not LEAST <= len(password) <= MOST:
        raise InvalidRequest(
            f"A password has {LEAST} to {MOST} characters, not {len(password)}.", param="password"
        )
    if any(0xD800 <= ord(each) <= 0xDFFF for each in password):
        raise InvalidRequest("The password holds half a character.", param="password")


def made_up() -> str:
    """A password that can be typed: 100 bits."""
    groups = ("".join(secrets.choice(ALPHABET) for _ in range(5)) for _ in range(4))
    return "-".join(groups)
