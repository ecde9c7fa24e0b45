"""Which billing systems there are: read from the operator's file, once, at start.

[{"name": "stripe", "kind": "stripe", "token": "sk_…",
  "meters": {"cost_nano_usd": "loratorio_cost"}},
 {"name": "openmeter", "kind": "cloudevents", "url": "https://openmeter.example"}]
"""

from pathlib import Path

import msgspec

from gateway.billing.cloud_events import CloudEventSink
from gateway.billing.outbox_repository import METERS
from gateway.billing.sink import Sink
from gateway.billing.stripe import StripeSink
from gateway.config import ConfigError, Secret, require_web_address

STRIPE = "https://api.stripe.com"
LONGEST_NAME = 40


class SinkEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: str
    url: str = ""
    token: str = ""
    meters: dict[str, str] = {}


def read_sinks(file: Path) -> list[Sink]:
    """Raises ConfigError that names the entry and the field."""
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=list[SinkEntry])
    except OSError as error:
        raise ConfigError(f"sinks: {error}") from error
    except msgspec.DecodeError as error:  # never quotes a value
        raise ConfigError(f"sinks: {file}: {error}") from error
    names = [entry.name for entry in entries]
    for entry in entries:
        if not 0 < len(entry.name) <= LONGEST_NAME or not entry.name.isprintable():
            raise ConfigError(f"sinks: name must have 1 to {LONGEST_NAME} printable characters")
        if names.count(entry.name) > 1:
            raise ConfigError(f"sinks: name {entry.name!r} is there twice")
    return [_sink(entry) for entry in entries]


def _sink(entry: SinkEntry) -> Sink:
    where = f"sinks: {entry.name}"
    url = (entry.url or (STRIPE if entry.kind == "stripe" else "")).rstrip("/")
    require_web_address(f"{where}: url", url)
    if not (entry.token.isascii() and entry.token.isprintable()) or " " in entry.token:
        # It goes into a header: else each delivery failed, without end.
        raise ConfigError(f"{where}: token: printable ASCII without spaces or line breaks")
    if entry.kind == "cloudevents":
        if entry.meters:
            raise ConfigError(f"{where}: meters are for kind 'stripe': events carry all of them")
        return CloudEventSink(
            name=entry.name, url=url, token=Secret(entry.token) if entry.token else None
        )
    if entry.kind != "stripe":
        raise ConfigError(f"{where}: kind {entry.kind!r} is neither 'stripe' nor 'cloudevents'")
    if not entry.token:
        raise ConfigError(f"{where}: token is missing")
    return StripeSink(
        name=entry.name, url=url, token=Secret(entry.token), meters=_meters(where, entry.meters)
    )


def _meters(where: str, meters: dict[str, str]) -> dict[str, str]:
    if not meters:
        raise ConfigError(f"{where}: meters: name at least one, of {', '.join(METERS)}")
    for ours, theirs in meters.items():
        if ours not in METERS:
            raise ConfigError(f"{where}: meters: {ours!r} is none of {', '.join(METERS)}")
        if not 0 < len(theirs) <= 100:
            raise ConfigError(f"{where}: meters.{ours}: 1 to 100 characters")
    return meters
