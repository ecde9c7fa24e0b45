"""What a key may be for: paths, public names of models, ranges of addresses."""

import ipaddress
import re

from gateway.errors import InvalidRequest

MOST = 100  # of each kind
PATH = re.compile(r"/[\x21-\x7e]{1,63}")


def checked_endpoints(paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Raises InvalidRequest."""
    for path in _bounded(paths, "endpoints"):
        if PATH.fullmatch(path) is None:
            raise InvalidRequest(
                f"endpoints: {path[:64]!r} is not a path, such as /v1/chat/completions",
                param="endpoints",
            )
    return paths


def checked_models(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Raises InvalidRequest."""
    for name in _bounded(names, "models"):
        if not 0 < len(name) <= 256 or not name.isprintable():
            raise InvalidRequest(
                f"models: {name[:64]!r} is not a name of 1 to 256 characters", param="models"
            )
    return names


def checked_networks(ranges: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """As they are compared: ``10.1.2.3`` is ``10.1.2.3/32``. Raises InvalidRequest."""
    found = []
    for text in _bounded(ranges, "networks"):
        try:
            found.append(str(ipaddress.ip_network(text)))
        except ValueError as error:
            raise InvalidRequest(
                f"networks: {text[:64]!r} is not a range of addresses, such as 10.0.0.0/8: {error}",
                param="networks",
            ) from error
    return None if ranges is None else tuple(found)


def _bounded(values: tuple[str, ...] | None, param: str) -> tuple[str, ...]:
    if values is not None and not 0 < len(values) <= MOST:
        raise InvalidRequest(f"{param}: from 1 to {MOST} of them, not {len(values)}", param=param)
    return values or ()
