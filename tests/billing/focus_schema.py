"""What FOCUS 1.2 asks of a Cost and Usage file, as far as our columns go, written from its text.

Held against files as others read them: a CSV's cells are text, a null is empty.
"""

import csv
import re
from decimal import Decimal
from pathlib import Path

MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory",
    "ServiceName",
}  # fmt: skip
NULLABLE = {"ChargeClass", "CommitmentDiscountStatus", "x_PrincipalId", "x_AdapterDigest"}
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {"Generative AI"},
    "BillingCurrency": {"USD"},
    "PricingCurrency": {"USD"},
}
TIMES = {"BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"}
NUMBERS = {
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "PricingQuantity",
    "ConsumedQuantity", "ListUnitPrice", "ContractedUnitPrice", "PricingCurrencyListUnitPrice",
    "PricingCurrencyContractedUnitPrice", "PricingCurrencyEffectiveCost",
}  # fmt: skip
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
NUMBER = re.compile(r"-?(0|[1-9]\d*)\.(0|\d*[1-9])")
UNITS = {"Tokens", "GiB-Hours"}
PRODUCTS = {"ListCost": "ListUnitPrice", "ContractedCost": "ContractedUnitPrice"}

Cells = dict[str, str]


def read(path: Path) -> list[Cells]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def violations(rows: list[Cells]) -> list[str]:
    """Empty where a file is as it must be."""
    found = [f"missing: {name}" for name in sorted(MANDATORY - rows[0].keys())] if rows else []
    for number, row in enumerate(rows):
        found += [f"row {number}: {what}" for what in _of_row(row)]
    return found


def _of_row(row: Cells) -> list[str]:
    found = [f"{name} is null" for name, cell in row.items() if not cell and name not in NULLABLE]
    found += [f"{n} is {row[n]!r}" for n, values in ALLOWED.items() if row[n] not in values]
    found += [f"{name} is {row[name]!r}" for name in TIMES if not TIME.fullmatch(row[name])]
    found += [f"{name} is {row[name]!r}" for name in NUMBERS if not NUMBER.fullmatch(row[name])]
    if found:
        return found
    if row["PricingUnit"] not in UNITS or row["ConsumedUnit"] not in UNITS:
        found.append(f"unit {row['PricingUnit']!r}, {row['ConsumedUnit']!r}")
    for cost, price in PRODUCTS.items():
        product = Decimal(row[price]) * Decimal(row["PricingQuantity"])
        if abs(product - Decimal(row[cost])) > Decimal("1e-12"):
            found.append(f"{cost} is {row[cost]}, not {product}")
    if not row["ChargePeriodStart"] < row["ChargePeriodEnd"]:
        found.append("an empty charge period")
    before = row["ChargePeriodStart"] < row["BillingPeriodStart"]
    if before != (row["ChargeClass"] == "Correction") or (
        row["ChargePeriodEnd"] > row["BillingPeriodEnd"]
    ):
        found.append(f"charged {row['ChargePeriodStart']}, billed {row['BillingPeriodStart']}")
    return found
