"""The provider over HTTP: where its pages are, its keys, and a code for a token.

What it says of itself is kept for an hour; its keys are asked for again when a token names one that
is not known, though not more often than every few seconds, for anybody can send such tokens.
"""

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, urlencode

import httpx2
import orjson
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from gateway.config import ConfigError
from gateway.errors import SignInRefused, Unavailable
from gateway.identity.oidc_settings import Claims, OidcSettings, require_https
from gateway.identity.oidc_token import UnknownKey, claims_of, refused

DISCOVERY = "/.well-known/openid-configuration"
NEEDED = ("authorization_endpoint", "token_endpoint", "jwks_uri")
KEPT_S = 3600.0
KEYS_AGAIN_S = 10.0
TIMEOUT_S = 10.0
MOST_BYTES = 1 << 20
AWAY = "The sign-in service does not answer; try again later."


class Provider:
    """Belongs to one event loop."""

    def __init__(
        self, settings: OidcSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._about: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._turn = asyncio.Lock()

    async def address(self, *, state: str, nonce: str, verifier: str) -> str:
        """Of the page where somebody signs in. Raises Unavailable."""
        about = await self._described()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.return_url,
            "scope": self.settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        page: str = about["authorization_endpoint"]
        return f"{page}{'&' if '?' in page else '?'}{urlencode(asked)}"

    async def claims(self, code: str, *, nonce: str, verifier: str) -> Claims:
        """Of whoever came back with this code. Raises SignInRefused, Unavailable."""
        token = await self._token(code, verifier)
        for again in (False, True):
            keys = await self._known_keys(again=again)
            try:
                return claims_of(
                    token, keys, issuer=self.settings.issuer, client=self.settings.client_id,
                    nonce=nonce,
                )  # fmt: skip
            except UnknownKey:
                continue
        raise refused("its token is not signed by it")

    async def _token(self, code: str, verifier: str) -> object:
        about, settings = await self._described(), self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": settings.return_url,
            "client_id": settings.client_id,
            "code_verifier": verifier,
        }
        headers = {}
        secret = settings.client_secret.reveal()
        ways = about.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret and "client_secret_basic" in ways:
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(secret)}".encode()
            headers["authorization"] = "Basic " + base64.b64encode(pair).decode()
        elif secret:
            form["client_secret"] = secret
        status, answer = await self._fetch(about["token_endpoint"], form=form, headers=headers)
        if status != 200:
            raise refused("it did not take the code")
        return answer.get("id_token")

    async def _described(self) -> dict[str, Any]:
        async with self._turn:
            if self._about is not None and self._clock() - self._about[0] < KEPT_S:
                return self._about[1]
            status, about = await self._fetch(self.settings.issuer.rstrip("/") + DISCOVERY)
            if status != 200 or about.get("issuer") != self.settings.issuer:
                raise Unavailable("The sign-in service is not the one that was configured.")
            for name in NEEDED:
                try:
                    require_https(name, str(about.get(name)).partition("?")[0])
                except ConfigError as error:
                    raise Unavailable(f"The sign-in service has no {name}.") from error
            self._about = self._clock(), about
            return about

    async def _known_keys(self, *, again: bool) -> KeySet:
        about = await self._described()
        async with self._turn:
            if self._keys is not None:
                age = self._clock() - self._keys[0]
                if age < (KEYS_AGAIN_S if again else KEPT_S):
                    return self._keys[1]
            status, found = await self._fetch(about["jwks_uri"])
            try:
                keys = KeySet.import_key_set({"keys": _for_signing(found)})
            except (JoseError, ValueError, KeyError, TypeError) as error:
                raise Unavailable("The sign-in service shows no keys.") from error
            if status != 200:
                raise Unavailable(AWAY)
            self._keys = self._clock(), keys
            return keys

    async def _fetch(
        self,
        url: str,
        *,
        form: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """A JSON object. Redirects are not followed. Raises Unavailable."""
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                httpx2.AsyncClient(timeout=TIMEOUT_S) as client,
                client.stream(
                    "GET" if form is None else "POST", url, data=form,
                    headers={"accept": "application/json", **(headers or {})},
                ) as answer,
            ):  # fmt: skip
                body = b""
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise Unavailable(AWAY)
            found = orjson.loads(body)
        except (httpx2.HTTPError, TimeoutError, orjson.JSONDecodeError) as error:
            raise Unavailable(AWAY, retry_after=1.0) from error
        if not isinstance(found, dict) or answer.status_code >= 500:
            raise Unavailable(AWAY, retry_after=1.0)
        return answer.status_code, found


def _for_signing(found: dict[str, Any]) -> list[Any]:
    """Public keys alone: a shared secret among them would let anybody who reads it sign."""
    keys = [key for key in found["keys"] if isinstance(key, dict)]
    return [k for k in keys if k.get("kty") != "oct" and k.get("use", "sig") == "sig"]


def challenge_of(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def told_error(text: str) -> SignInRefused:
    """What the provider says went wrong: a code of the standard, never its own text."""
    safe = "".join(each for each in text[:40] if each.isascii() and (each.isalnum() or each == "_"))
    return SignInRefused(f"The sign-in service says {safe or 'no'}.")
