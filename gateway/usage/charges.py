"""What a day is billed, by everything a bill tells apart. Pure.

A request counts at the price it was charged by last in each period: an adjustment takes its tokens
and money off the price that was wrong and puts them on the right one, so quantity times price is
the cost at every price, and the sums are the ledger's to the nano-dollar. In another period than
the request's own both halves are corrections of what was billed before.

A request and its adjustments have the same day, so a day is complete by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import date

from gateway.usage.event import month_of


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ChargeKey:
    """What a charge's requests agree in. "" stands for none."""

    day: date
    period: date
    organisation_id: str
    project_id: str
    key_id: str
    base_model: str
    adapter_id: str
    tier: str
    price_id: str  # "": unpriced

    @property
    def is_correction(self) -> bool:
        """Of a month that was billed before."""
        return month_of(self.day) != self.period


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeSums:
    """Disjoint meters; negative where a correction takes off more than it puts on."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    storage_byte_hours: int = 0
    input_nano: int = 0
    cached_nano: int = 0
    output_nano: int = 0
    storage_nano: int = 0

    def __add__(self, other: "ChargeSums") -> "ChargeSums":
        return ChargeSums(**{name: getattr(self, name) + getattr(other, name) for name in SUMS})

    def __sub__(self, other: "ChargeSums") -> "ChargeSums":
        return ChargeSums(**{name: getattr(self, name) - getattr(other, name) for name in SUMS})

    @property
    def cost_nano(self) -> int:
        return self.input_nano + self.cached_nano + self.output_nano + self.storage_nano


KEYS = tuple(field.name for field in fields(ChargeKey))
SUMS = tuple(field.name for field in fields(ChargeSums))
NOTHING = ChargeSums()

Charges = dict[ChargeKey, ChargeSums]


@dataclass(frozen=True, slots=True)
class Charged:
    """A request that was charged anew: as it was at first, and its adjustments, oldest first."""

    at_first: ChargeSums
    adjustments: tuple[tuple[ChargeKey, ChargeKey, ChargeSums], ...]  # from, to, the difference


def adjusted(charges: Charges, requests: Iterable[Charged]) -> Charges:
    """The charges with these adjustments; those that come to nothing are left out."""
    found = dict(charges)
    for request in requests:
        so_far = request.at_first
        for wrong, right, change in request.adjustments:
            found[wrong] = found.get(wrong, NOTHING) - so_far
            so_far = so_far + change
            found[right] = found.get(right, NOTHING) + so_far
    return {key: sums for key, sums in found.items() if sums != NOTHING}
