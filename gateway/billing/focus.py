"""A charge as FOCUS 1.2 has it: the columns of Cost and Usage, and what each of ours says. Pure.

Money is exact decimals, never floats. ``BilledCost`` and ``EffectiveCost`` are the ledger's
nano-dollars; ``ListCost`` and ``ContractedCost`` are unit price times quantity, in pico-dollars:
they differ by what rounding each request to a nano-dollar came to. Columns that FOCUS does not
have begin with ``x_``; those of credentials are its draft's for the next version.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum

import msgspec

from gateway.usage.charges import ChargeKey, ChargeSums
from gateway.usage.event import next_month

VERSION = "1.2"
CURRENCY = "USD"
SERVICE = "LLM inference"
BYTES_PER_GIB = 1 << 30
PLACES = 12  # of every number: a pico-dollar
EXACT = Context(prec=60)

Cell = str | Decimal | datetime | None
Row = tuple[Cell, ...]


class Column(StrEnum):
    """In the order of a file."""

    BILLING_ACCOUNT_ID = "BillingAccountId"
    BILLING_ACCOUNT_NAME = "BillingAccountName"
    BILLING_ACCOUNT_TYPE = "BillingAccountType"
    SUB_ACCOUNT_ID = "SubAccountId"
    SUB_ACCOUNT_NAME = "SubAccountName"
    SUB_ACCOUNT_TYPE = "SubAccountType"
    BILLING_PERIOD_START = "BillingPeriodStart"
    BILLING_PERIOD_END = "BillingPeriodEnd"
    CHARGE_PERIOD_START = "ChargePeriodStart"
    CHARGE_PERIOD_END = "ChargePeriodEnd"
    CHARGE_CATEGORY = "ChargeCategory"
    CHARGE_CLASS = "ChargeClass"
    CHARGE_DESCRIPTION = "ChargeDescription"
    CHARGE_FREQUENCY = "ChargeFrequency"
    SERVICE_CATEGORY = "ServiceCategory"
    SERVICE_SUBCATEGORY = "ServiceSubcategory"
    SERVICE_NAME = "ServiceName"
    PROVIDER_NAME = "ProviderName"
    PUBLISHER_NAME = "PublisherName"
    INVOICE_ISSUER_NAME = "InvoiceIssuerName"
    INVOICE_ID = "InvoiceId"
    RESOURCE_ID = "ResourceId"
    RESOURCE_NAME = "ResourceName"
    RESOURCE_TYPE = "ResourceType"
    SKU_ID = "SkuId"
    SKU_METER = "SkuMeter"
    SKU_PRICE_ID = "SkuPriceId"
    SKU_PRICE_DETAILS = "SkuPriceDetails"
    PRICING_CATEGORY = "PricingCategory"
    PRICING_CURRENCY = "PricingCurrency"
    PRICING_QUANTITY = "PricingQuantity"
    PRICING_UNIT = "PricingUnit"
    CONSUMED_QUANTITY = "ConsumedQuantity"
    CONSUMED_UNIT = "ConsumedUnit"
    LIST_UNIT_PRICE = "ListUnitPrice"
    CONTRACTED_UNIT_PRICE = "ContractedUnitPrice"
    LIST_COST = "ListCost"
    CONTRACTED_COST = "ContractedCost"
    EFFECTIVE_COST = "EffectiveCost"
    BILLED_COST = "BilledCost"
    BILLING_CURRENCY = "BillingCurrency"
    PRICING_CURRENCY_LIST_UNIT_PRICE = "PricingCurrencyListUnitPrice"
    PRICING_CURRENCY_CONTRACTED_UNIT_PRICE = "PricingCurrencyContractedUnitPrice"
    PRICING_CURRENCY_EFFECTIVE_COST = "PricingCurrencyEffectiveCost"
    COMMITMENT_DISCOUNT_STATUS = "CommitmentDiscountStatus"
    CREDENTIAL_ID = "x_CredentialId"
    PRINCIPAL_ID = "x_PrincipalId"
    BASE_MODEL = "x_BaseModel"
    DIGEST = "x_AdapterDigest"
    SERVICE_TIER = "x_ServiceTier"


DECIMALS = frozenset(
    {
        Column.PRICING_QUANTITY, Column.CONSUMED_QUANTITY, Column.LIST_UNIT_PRICE,
        Column.CONTRACTED_UNIT_PRICE, Column.LIST_COST, Column.CONTRACTED_COST,
        Column.EFFECTIVE_COST, Column.BILLED_COST, Column.PRICING_CURRENCY_LIST_UNIT_PRICE,
        Column.PRICING_CURRENCY_CONTRACTED_UNIT_PRICE, Column.PRICING_CURRENCY_EFFECTIVE_COST,
    }
)  # fmt: skip
TIMES = frozenset(
    {
        Column.BILLING_PERIOD_START, Column.BILLING_PERIOD_END,
        Column.CHARGE_PERIOD_START, Column.CHARGE_PERIOD_END,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resource:
    """An adapter."""

    name: str  # public name and version
    digest: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one price: pico-dollars per token, and per GiB and hour."""

    input: int
    cached_input: int
    output: int
    storage: int
    of_adapter: bool  # rather than of its base


@dataclass(frozen=True, slots=True)
class Names:
    """What ids are called; all are there, for nothing of these is ever deleted."""

    organisations: Mapping[str, str]
    projects: Mapping[str, str]
    principals: Mapping[str, str | None]  # key -> whose it is: a person, a service account
    adapters: Mapping[str, Resource]
    prices: Mapping[str, Rates]


@dataclass(frozen=True, slots=True)
class Meter:
    id: str
    name: str
    unit: str
    quantity: Decimal
    nano: int
    pico: int  # per unit


class Focus:
    """Rows of charges. ``issuer`` is who provides the service and sends the invoices."""

    def __init__(self, names: Names, issuer: str) -> None:
        self._names = names
        self._issuer = issuer

    def rows(self, key: ChargeKey, sums: ChargeSums) -> Iterator[Row]:
        """One for each meter on which there is anything. Not for what has no price."""
        for meter in _meters(sums, self._names.prices[key.price_id]):
            if meter.quantity or meter.nano:
                cells = {**self._who(key), **_when(key), **self._what(key, meter), **_cost(meter)}
                yield tuple(cells[column] for column in Column)

    def _who(self, key: ChargeKey) -> dict[Column, Cell]:
        names, account = self._names, key.organisation_id
        return {
            Column.BILLING_ACCOUNT_ID: account,
            Column.BILLING_ACCOUNT_NAME: names.organisations.get(account, account),
            Column.BILLING_ACCOUNT_TYPE: "Organisation",
            Column.SUB_ACCOUNT_ID: key.project_id,
            Column.SUB_ACCOUNT_NAME: names.projects.get(key.project_id, key.project_id),
            Column.SUB_ACCOUNT_TYPE: "Project",
            Column.PROVIDER_NAME: self._issuer,
            Column.PUBLISHER_NAME: self._issuer,
            Column.INVOICE_ISSUER_NAME: self._issuer,
            Column.INVOICE_ID: f"{account}-{key.period:%Y-%m}",  # provisional until the close
            Column.CREDENTIAL_ID: key.key_id or None,
            Column.PRINCIPAL_ID: names.principals.get(key.key_id),
        }

    def _what(self, key: ChargeKey, meter: Meter) -> dict[Column, Cell]:
        adapter = self._names.adapters.get(key.adapter_id)
        rates = self._names.prices[key.price_id]
        name = adapter.name if adapter else key.adapter_id or key.base_model
        late = f", {key.day:%Y-%m} corrected" if key.is_correction else ""
        details = {"x_ServiceTier": key.tier}
        return {
            Column.CHARGE_CATEGORY: "Usage",
            Column.CHARGE_CLASS: "Correction" if key.is_correction else None,
            Column.CHARGE_DESCRIPTION: f"{meter.name} of {name}{late}",
            Column.CHARGE_FREQUENCY: "Usage-Based",
            Column.SERVICE_CATEGORY: "AI and Machine Learning",
            Column.SERVICE_SUBCATEGORY: "Generative AI",
            Column.SERVICE_NAME: SERVICE,
            Column.RESOURCE_ID: key.adapter_id or key.base_model,
            Column.RESOURCE_NAME: name,
            Column.RESOURCE_TYPE: "Adapter" if key.adapter_id else "Base model",
            Column.SKU_ID: f"{key.adapter_id if rates.of_adapter else key.base_model}/{meter.id}",
            Column.SKU_METER: meter.name,
            Column.SKU_PRICE_ID: f"{key.price_id}/{meter.id}",
            Column.SKU_PRICE_DETAILS: msgspec.json.encode(details).decode(),
            Column.PRICING_CATEGORY: "Standard",
            Column.BASE_MODEL: key.base_model,
            Column.DIGEST: adapter.digest if adapter else None,
            Column.SERVICE_TIER: key.tier,
        }


def _when(key: ChargeKey) -> dict[Column, Cell]:
    return {
        Column.BILLING_PERIOD_START: _midnight(key.period),
        Column.BILLING_PERIOD_END: _midnight(next_month(key.period)),
        Column.CHARGE_PERIOD_START: _midnight(key.day),
        Column.CHARGE_PERIOD_END: _midnight(key.day + timedelta(days=1)),
    }


def _cost(meter: Meter) -> dict[Column, Cell]:
    price = Decimal(meter.pico).scaleb(-PLACES)
    listed = rounded(EXACT.multiply(price, meter.quantity))
    billed = Decimal(meter.nano).scaleb(-9)
    return {
        Column.PRICING_CURRENCY: CURRENCY,
        Column.PRICING_QUANTITY: meter.quantity,
        Column.PRICING_UNIT: meter.unit,
        Column.CONSUMED_QUANTITY: meter.quantity,
        Column.CONSUMED_UNIT: meter.unit,
        Column.LIST_UNIT_PRICE: price,
        Column.CONTRACTED_UNIT_PRICE: price,
        Column.LIST_COST: listed,
        Column.CONTRACTED_COST: listed,
        Column.EFFECTIVE_COST: billed,
        Column.BILLED_COST: billed,
        Column.BILLING_CURRENCY: CURRENCY,
        Column.PRICING_CURRENCY_LIST_UNIT_PRICE: price,
        Column.PRICING_CURRENCY_CONTRACTED_UNIT_PRICE: price,
        Column.PRICING_CURRENCY_EFFECTIVE_COST: billed,
        Column.COMMITMENT_DISCOUNT_STATUS: None,  # there are none, which rules ask of it
    }


def _meters(sums: ChargeSums, rates: Rates) -> Iterator[Meter]:
    """Disjoint: a cached token is not an input token as well."""
    for id, name, quantity, nano, pico in (
        ("input", "Input tokens", sums.input_tokens, sums.input_nano, rates.input),
        ("cached-input", "Cached input tokens", sums.cached_tokens, sums.cached_nano,
         rates.cached_input),
        ("output", "Output tokens", sums.output_tokens, sums.output_nano, rates.output),
    ):  # fmt: skip
        yield Meter(id, name, "Tokens", Decimal(quantity), nano, pico)
    stored = rounded(EXACT.divide(Decimal(sums.storage_byte_hours), Decimal(BYTES_PER_GIB)))
    yield Meter("storage", "Adapter storage", "GiB-Hours", stored, sums.storage_nano, rates.storage)


def rounded(amount: Decimal) -> Decimal:
    """To the places that a file keeps; only gibibytes ever have more."""
    return amount.quantize(Decimal(1).scaleb(-PLACES), ROUND_HALF_EVEN, EXACT)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
