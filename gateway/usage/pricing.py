"""From tokens to money. Pure functions; integers from end to end, never floats.

Prices are pico-dollars per token, costs nano-dollars: one rounding, of the whole event, half up.
The meters' shares of it add up to it exactly.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gateway.errors import InvalidRequest
from gateway.usage.record import Outcome

PICO_PER_NANO = 1000
DEFAULT_TIER = "default"
BATCH_TIER = "batch"
PICO_PER_DOLLAR_PER_MILLION = 10**6  # a dollar per million tokens is a million pico a token
MOST_PICO = 10**15  # a thousand dollars per token: a price above is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Pico-dollars per token, from a time on."""

    id: str  # prc_…
    effective_from: datetime
    input: int
    cached_input: int
    output: int
    tier: str = DEFAULT_TIER


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Disjoint meters: a cached token is not an input token as well."""

    input: int
    cached_input: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Nano-dollars on each meter."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    storage: int = 0

    @property
    def total(self) -> int:
        return self.input + self.cached_input + self.output + self.storage

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            input=self.input + other.input,
            cached_input=self.cached_input + other.cached_input,
            output=self.output + other.output,
            storage=self.storage + other.storage,
        )

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            input=self.input - other.input,
            cached_input=self.cached_input - other.cached_input,
            output=self.output - other.output,
            storage=self.storage - other.storage,
        )


NO_COST = Cost()


class PriceBook:
    """Tariffs by what they are for: a base model's served name, or an adapter's id; and by tier.

    Of two that begin at the same time the later made one holds: so a wrong price is corrected.
    """

    def __init__(self, tariffs: Iterable[tuple[str, Tariff]]) -> None:
        self._tariffs: dict[tuple[str, str], list[Tariff]] = {}
        self._by_id: dict[str, Tariff] = {}
        for subject, tariff in sorted(
            tariffs, key=lambda pair: (pair[1].effective_from, pair[1].id)
        ):
            self._tariffs.setdefault((subject, tariff.tier), []).append(tariff)
            self._by_id[tariff.id] = tariff

    def by_id(self, price_id: str) -> Tariff | None:
        return self._by_id.get(price_id)

    def at(
        self, base_model: str, adapter_id: str | None, time: datetime, tier: str = DEFAULT_TIER
    ) -> Tariff | None:
        """The adapter's own tariff if it has one by then, else its base's. None: unpriced.

        A tier without a price of its own costs what the default tier does.
        """
        for subject in (adapter_id, base_model):
            for level in (tier, DEFAULT_TIER):
                known = self._tariffs.get((subject or "", level), [])
                index = bisect_right(known, time, key=lambda tariff: tariff.effective_from)
                if index:
                    return known[index - 1]
        return None


def billable(outcome: Outcome, *, prompt: int, cached: int, completion: int) -> Tokens:
    """What is charged: all that was computed, but nothing where we failed and delivered nothing."""
    if completion == 0 and outcome in (Outcome.FAILED, Outcome.ENGINE_LOST):
        return Tokens(input=0, cached_input=0, output=0)
    return Tokens(input=prompt - cached, cached_input=cached, output=completion)


def cost(tariff: Tariff, tokens: Tokens) -> Cost:
    """Each meter's share is what the rounded sum grows by when it is added."""
    first = tokens.input * tariff.input
    second = first + tokens.cached_input * tariff.cached_input
    whole = _nano(second + tokens.output * tariff.output)
    return Cost(
        input=_nano(first), cached_input=_nano(second) - _nano(first), output=whole - _nano(second)
    )


def _nano(pico: int) -> int:
    return (pico + PICO_PER_NANO // 2) // PICO_PER_NANO


def pico_per_token(dollars_per_million: str, *, param: str) -> int:
    """From what people write, "0.15" dollars per million tokens. Raises InvalidRequest."""
    try:
        pico = Decimal(dollars_per_million) * PICO_PER_DOLLAR_PER_MILLION
        exact = pico.is_finite() and pico == pico.to_integral_value() and 0 <= pico <= MOST_PICO
    except ArithmeticError:  # no number, or one beyond all bounds
        exact = False
    if not exact:
        raise InvalidRequest(
            f"{param} {dollars_per_million[:40]!r}: dollars per million tokens, "
            "at most 6 decimal places",
            param=param,
        )
    return int(pico)


def dollars(nano: int) -> str:
    """Exactly, for people: 1234500 nano is 0.0012345."""
    return f"{Decimal(nano).scaleb(-9).normalize():f}"
