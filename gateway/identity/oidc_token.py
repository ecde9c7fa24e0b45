"""What an ID token must be before anything it says is believed. Pure, but for the clock.

Signed by a key of the provider, with an algorithm of public keys: one of a shared secret, or none,
is never taken, whatever the token or its key says.
"""

import hmac
import time
from collections.abc import Callable
from typing import Any

from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from gateway.errors import SignInRefused
from gateway.identity.oidc_settings import Claims

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
              "Ed25519", "EdDSA")  # fmt: skip
LEEWAY_S = 60  # between the provider's clock and ours
OLDEST_S = 600  # since the token was made
MOST_TOKEN = 64 << 10


class UnknownKey(Exception):
    """No key of this name: the provider may have new ones."""


def claims_of(
    token: object,
    keys: KeySet,
    *,
    issuer: str,
    client: str,
    nonce: str,
    clock: Callable[[], float] = time.time,
) -> Claims:
    """Raises SignInRefused, UnknownKey."""
    if not isinstance(token, str) or not 0 < len(token) <= MOST_TOKEN:
        raise refused("it sent no ID token")
    try:
        read = jwt.decode(token, keys, algorithms=ALGORITHMS, registry=JWSRegistry())
    except InvalidKeyIdError as error:
        raise UnknownKey from error
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise refused("its token is not signed by it") from error
    claims: dict[str, Any] = read.claims
    rules = jwt.JWTClaimsRegistry(
        now=lambda: int(clock()),
        leeway=LEEWAY_S,
        iss={"essential": True, "value": issuer},
        sub={"essential": True},
        aud={"essential": True, "value": client},
        exp={"essential": True},
        iat={"essential": True},
        nonce={"essential": True},
    )
    try:
        rules.validate(claims)
    except (JoseError, ValueError, TypeError) as error:
        raise refused("its token is not for this sign-in, or not of now") from error
    if not _is_for(claims, client) or not _is_now(claims, clock()):
        raise refused("its token is not for this sign-in, or not of now")
    told = claims["nonce"]
    if not isinstance(told, str) or not hmac.compare_digest(told.encode(), nonce.encode()):
        raise refused("its token is of another sign-in")
    if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
        raise refused("its token does not say who somebody is")
    return claims


def _is_for(claims: Claims, client: str) -> bool:
    """A token for several must say that it was made for us."""
    audience = claims["aud"]
    if isinstance(audience, list) and len(audience) > 1 and "azp" not in claims:
        return False
    return claims.get("azp", client) == client


def _is_now(claims: Claims, now: float) -> bool:
    made = claims["iat"]
    return isinstance(made, int | float) and now - OLDEST_S <= made <= now + LEEWAY_S


def refused(why: str) -> SignInRefused:
    return SignInRefused(f"The sign-in service was not believed: {why}. Try again.")
