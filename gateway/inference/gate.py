"""Who may come in: the authorization header to a principal, before anything else is looked at.

In open mode the snapshot answers for any or no key, so the gate lets only callers of this very
machine through: the peer is loopback, nobody forwarded the request, and the host that the client
meant is loopback too (a web page elsewhere could otherwise have its name point here).
"""

import ipaddress
from typing import Protocol

from gateway.errors import EndpointDenied, InvalidRequest, PermissionDenied, Unauthenticated
from gateway.http import Reply, Request
from gateway.identity.principal import Principal

FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")


class Keys(Protocol):
    async def recognise(self, key: str) -> Principal:
        """Raises Unauthenticated."""
        ...


VERSION = "2020-10-01"  # of OpenAI's API, the only one there has been


class Gate:
    def __init__(self, keys: Keys, *, open_to_this_machine: bool, forwarded_hops: int = 0) -> None:
        """``forwarded_hops``: proxies of ours before this server, each of which adds the address
        it was called from to ``x-forwarded-for``."""
        self._keys = keys
        self._hops = forwarded_hops
        self._open = open_to_this_machine

    async def admit(self, request: Request) -> Principal:
        """Raises Unauthenticated, InvalidRequest for more than one key, PermissionDenied."""
        principal = await self.recognise(request)
        self._require(principal, request)
        return principal

    async def enter(self, request: Request, reply: Reply) -> Principal:
        """As ``admit``; the answer, whatever it will be, says for whom it is."""
        principal = await self.recognise(request)
        reply.caller = principal  # who is refused from here on sees it in the request log
        reply.facts |= {"project": principal.project, "key": principal.key}
        reply.headers["openai-organization"] = principal.organisation
        reply.headers["openai-version"] = VERSION
        self._require(principal, request)
        return principal

    async def identify(self, request: Request) -> Principal:
        """As ``admit``, but admin keys too."""
        principal = await self.recognise(request)
        require_scope(principal, request.path, address_of(request, self._hops))
        return principal

    async def recognise(self, request: Request) -> Principal:
        """Whose key it is, whatever that key may do. Raises as ``admit``."""
        if self._open and not is_local(request):
            raise PermissionDenied("This server is open to clients on its own machine only.")
        return await self._keys.recognise(self._key(request))

    def _require(self, principal: Principal, request: Request) -> None:
        require_scope(principal, request.path, address_of(request, self._hops))
        if principal.admin:
            raise PermissionDenied("Admin keys cannot call inference routes.")

    def _key(self, request: Request) -> str:
        values = request.headers(b"authorization")
        if len(values) > 1:
            raise InvalidRequest("Send one Authorization header, not several.")
        text = (values[0] if values else b"").strip(b" \t").replace(b"\t", b" ")
        scheme, _, rest = text.partition(b" ")
        key = rest.strip(b" ")
        if scheme.lower() != b"bearer" or not key:
            if self._open:
                return ""
            raise Unauthenticated
        if sum(part.startswith(b"sk-") for part in key.replace(b",", b" ").split()) > 1:
            raise InvalidRequest("Send one API key in the Authorization header, not several.")
        return key.decode("latin-1")


def require_scope(principal: Principal, path: str, address: str) -> None:
    """Raises EndpointDenied where the key is not for this path, PermissionDenied where it is not
    for this address."""
    if principal.endpoints is not None and not _under(path, principal.endpoints):
        raise EndpointDenied(f"This API key may not be used for {path[:64]}.")
    if principal.networks is not None and not _within(address, principal.networks):
        raise PermissionDenied("This API key may not be used from this address.")


def address_of(request: Request, hops: int) -> str:
    """The client's, as our own proxies saw it. What stands before theirs is anybody's word.

    Empty where fewer than ``hops`` proxies say anything: such a request came around them.
    """
    if hops == 0:
        return request.peer
    said = b",".join(request.headers(b"x-forwarded-for")).decode("latin-1").split(",")
    return _bare(said[-hops].strip()) if len(said) >= hops else ""


def _bare(address: str) -> str:
    """Without the port that some proxies add."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _under(path: str, endpoints: tuple[str, ...]) -> bool:
    """A key for ``/v1/files`` is for one of the files as well."""
    return any(path == endpoint or path.startswith(f"{endpoint}/") for endpoint in endpoints)


def _within(peer: str, networks: tuple[str, ...]) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in ipaddress.ip_network(network) for network in networks)


def is_local(request: Request) -> bool:
    forwarded = any(request.headers(name) for name in FORWARDED)
    return _is_loopback(request.peer) and not forwarded and _is_loopback(_host(request))


def _host(request: Request) -> str:
    """The host that the client meant, without its port."""
    host = request.header(b"host").decode("latin-1")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
