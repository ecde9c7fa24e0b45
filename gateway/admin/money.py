"""Amounts as administrators write them: cents of a dollar a month, or nano-dollars."""

from gateway.admin.desk import integer_of
from gateway.admin.shapes import NANO_PER_CENT, Json
from gateway.errors import InvalidRequest, MissingParameter
from gateway.limits.models import MOST_NANO

THRESHOLD = ("currency", "interval", "threshold_amount", "threshold_nano_usd")


def require_one_amount(of_cents: str, cents: int | None, name: str, nano: int | None) -> None:
    """Both may be said where they say the same. ``name``: of the field that is followed.

    Raises InvalidRequest.
    """
    if nano is not None and cents not in (None, nano // NANO_PER_CENT):
        raise InvalidRequest(
            f"{of_cents} is {cents} cents and {name} {nano} nano-dollars; give one of them",
            param=name,
        )


def threshold_of(body: Json, *, least: int = 0) -> int:
    """Nano-dollars. Raises InvalidRequest."""
    for name, only in (("currency", "USD"), ("interval", "month")):
        if body.get(name, only) != only:
            raise InvalidRequest(f"{name} must be {only!r}", param=name)
    cents, nano = integer_of(body, "threshold_amount"), integer_of(body, "threshold_nano_usd")
    name = "threshold_amount" if nano is None else "threshold_nano_usd"
    if nano is None and cents is None:
        raise MissingParameter("threshold_amount must be given", param=name)
    found = nano if nano is not None else (cents or 0) * NANO_PER_CENT
    require_one_amount("threshold_amount", cents, name, nano)
    if not least <= found <= MOST_NANO:
        unit = 1 if nano is not None else NANO_PER_CENT
        raise InvalidRequest(
            f"{name} {found // unit}: from {-(-least // unit)} to {MOST_NANO // unit}", param=name
        )
    return found


def amount_shown(nano: int) -> Json:
    return {
        "currency": "USD",
        "interval": "month",
        "threshold_amount": nano // NANO_PER_CENT,
        "threshold_nano_usd": nano,
    }
