"""What pages show that is not in the database: this gateway's own state."""

from dataclasses import dataclass

from gateway.dashboard.books import Books
from gateway.fleet.fleet import Fleet
from gateway.health import Health
from gateway.identity.pepper import Peppers
from gateway.limits.limiter import RateLimiter
from gateway.snapshot import LiveSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    snapshot: LiveSnapshot
    limiter: RateLimiter
    fleet: Fleet
    health: Health
    peppers: Peppers
    books: Books
    base_model: str
    key_environment: str = "live"
    uploads: bool = False  # whether adapters can be uploaded here
