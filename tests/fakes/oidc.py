"""An OpenID provider: discovery, a page that signs ``person`` in at once, tokens, keys that rotate.

It keeps the standard's rules as a client would meet them: a code is good once, for its redirect
address, its client and its verifier. ``spoil`` changes the next token's header or claims.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus, urlencode

from joserfc import jws, jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "loratorio", "s3cret:with a space"
Spoil = Callable[[dict[str, Any], dict[str, Any]], None]  # header, claims


@dataclass
class FakeProvider:
    issuer: str = ""  # once it is known where it listens
    person: dict[str, Any] = field(default_factory=dict)
    spoil: Spoil | None = None
    forge: Callable[[dict[str, Any]], str] | None = None  # a whole token of somebody else
    refusal: str = ""  # what the page answers instead of a code
    away: bool = False
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048))
    asked: list[str] = field(default_factory=list)  # paths
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def rotate(self) -> None:
        self.key = RSAKey.generate_key(2048)

    def application(self) -> Starlette:
        routes = [
            Route("/.well-known/openid-configuration", self._about),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Route("/keys", self._keys),
        ]
        return Starlette(routes=routes)

    async def _about(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if self.away:
            return JSONResponse({"error": "server_error"}, 503)
        return JSONResponse({
            "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "code_challenge_methods_supported": ["S256"],
        })  # fmt: skip

    async def _keys(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        public = self.key.as_dict(private=False, kid=self._kid(), use="sig", alg="RS256")
        # One that must not be believed: a secret that everybody can read.
        return JSONResponse({"keys": [public, OctKey.import_key("x" * 32).as_dict(kid="shared")]})

    async def _authorize(self, request: Request) -> Response:
        given = dict(request.query_params)
        wrong = (
            given.get("client_id") != CLIENT
            or given.get("response_type") != "code"
            or "openid" not in given.get("scope", "").split()
            or given.get("code_challenge_method") != "S256"
            or not all(given.get(n) for n in ("state", "nonce", "code_challenge", "redirect_uri"))
        )
        if wrong:
            return JSONResponse({"error": "invalid_request"}, 400)
        if self.refusal:
            back = {"error": self.refusal, "error_description": "<b>no</b>"}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = given
            back = {"code": code, "iss": self.issuer}
        query = urlencode({**back, "state": given["state"]})
        return RedirectResponse(f"{given['redirect_uri']}?{query}", 302)

    async def _token(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        scheme, _, pair = request.headers.get("authorization", "").partition(" ")
        client, _, secret = base64.b64decode(pair).decode().partition(":")
        if scheme != "Basic" or (unquote_plus(client), unquote_plus(secret)) != (CLIENT, SECRET):
            return JSONResponse({"error": "invalid_client"}, 401)
        form = {name: str(value) for name, value in (await request.form()).items()}
        given = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            given is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != given["redirect_uri"]
            or challenge != given["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        token = {"access_token": "unused", "token_type": "Bearer", "expires_in": 60}
        return JSONResponse({**token, "id_token": self._signed(given["nonce"])})

    def _signed(self, nonce: str) -> str:
        now = int(time.time())
        header: dict[str, Any] = {"alg": "RS256", "kid": self._kid()}
        claims = {"iss": self.issuer, "aud": CLIENT, "nonce": nonce, "iat": now, "exp": now + 300,
                  **self.person}  # fmt: skip
        if self.spoil is not None:
            self.spoil(header, claims)
        if self.forge is not None:
            return self.forge(claims)
        return jwt.encode(header, claims, self.key)

    def _kid(self) -> str:
        return self.key.thumbprint()[:8]


def unsigned(claims: dict[str, Any]) -> str:
    """As ``alg: none`` has it."""
    parts = ({"alg": "none"}, claims)
    texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return ".".join(text.decode() for text in texts) + "."


def with_shared_secret(claims: dict[str, Any]) -> str:
    """Signed by the secret that the provider shows among its keys."""
    header = {"alg": "HS256", "kid": "shared"}
    key = OctKey.import_key("x" * 32)
    return jws.serialize_compact(header, json.dumps(claims).encode(), key)
