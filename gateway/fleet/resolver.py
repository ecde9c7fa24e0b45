"""SRV records, which the system's resolver does not tell."""

from collections.abc import Sequence

from dns.asyncresolver import resolve
from dns.exception import DNSException
from dns.rdtypes.IN.SRV import SRV

LIFETIME_S = 2.5


async def services(name: str) -> Sequence[tuple[str, int]]:
    """(host, port) of every target, whatever its priority. Raises OSError."""
    try:
        answer = await resolve(name, "SRV", lifetime=LIFETIME_S)
    except DNSException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    found = [record for record in answer if isinstance(record, SRV)]
    return [(record.target.to_text(omit_final_dot=True), record.port) for record in found]
