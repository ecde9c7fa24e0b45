"""Who signs people in for us: read from the operator's file, once, at start.

{"issuer": "https://id.example/realms/main", "client_id": "loratorio", "client_secret": "…",
 "url": "https://llm.example", "name": "Example", "claim": "groups",
 "roles": [{"value": "llm-operators", "operator": true},
           {"value": "acme-admins", "organisation": "acme", "role": "admin"}]}

The first of ``roles`` whose value the claim has is who somebody is here. ``url`` is where browsers
find this gateway: the provider sends them back to ``url``/dashboard/sign-in/return.
"""

from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gateway.config import ConfigError, Secret, is_loopback, require_web_address
from gateway.identity.models import Role

RETURN = "/dashboard/sign-in/return"
LONGEST_NAME = 40
Claims = dict[str, object]


class RoleEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: str
    operator: bool = False
    organisation: str = ""
    role: Role = Role.VIEWER


class OidcFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: str
    client_id: str
    url: str
    roles: list[RoleEntry]
    client_secret: str = ""  # "": a public client, by PKCE alone
    name: str = "single sign-on"  # on the button
    claim: str = "groups"
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    trust_email: bool = False  # of a provider that does not say whether it looked


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    client_id: str
    client_secret: Secret
    return_url: str
    name: str
    claim: str
    scopes: str
    trust_email: bool
    roles: tuple[RoleEntry, ...]

    def entry(self, claims: Claims) -> RoleEntry | None:
        """Who somebody with these claims is; None: nobody."""
        found: object = claims
        for name in [self.claim] if self.claim in claims else self.claim.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        values = found if isinstance(found, list) else [found]
        return next((each for each in self.roles if each.value in values), None)


def read_oidc(file: Path) -> OidcSettings:
    """Raises ConfigError that names the field, and never quotes the secret."""
    try:
        given = msgspec.json.decode(file.read_bytes(), type=OidcFile)
    except OSError as error:
        raise ConfigError(f"oidc: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"oidc: {file}: {error}") from error
    for name in ("issuer", "url"):
        require_https(f"oidc: {name}", getattr(given, name))
    if not given.client_id:
        raise ConfigError("oidc: client_id is missing")
    if not 0 < len(given.name) <= LONGEST_NAME or not given.name.isprintable():
        raise ConfigError(f"oidc: name must have 1 to {LONGEST_NAME} printable characters")
    if "openid" not in given.scopes or any(not s or " " in s for s in given.scopes):
        raise ConfigError("oidc: scopes must be words, 'openid' among them")
    if not given.roles:
        raise ConfigError("oidc: roles: without one nobody could sign in")
    for number, entry in enumerate(given.roles):
        where = f"oidc: roles[{number}]"
        if not entry.value:
            raise ConfigError(f"{where}: value is empty")
        if entry.operator == bool(entry.organisation):
            raise ConfigError(f"{where}: either operator or organisation")
    return OidcSettings(
        issuer=given.issuer,
        client_id=given.client_id,
        client_secret=Secret(given.client_secret),
        return_url=given.url.rstrip("/") + RETURN,
        name=given.name,
        claim=given.claim,
        scopes=" ".join(given.scopes),
        trust_email=given.trust_email,
        roles=tuple(given.roles),
    )


def require_https(name: str, text: str) -> None:
    """But for a provider on this machine. Raises ConfigError."""
    require_web_address(name, text)
    parts = urlsplit(text)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ConfigError(f"{name}={text[:80]!r} must begin with https://")
    if parts.query or parts.fragment:
        raise ConfigError(f"{name}={text[:80]!r} has a query or a fragment")
