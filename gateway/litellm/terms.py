"""Limits, budgets and prices of LiteLLM in our words, and what has no counterpart, said."""

import re
from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal
from typing import Any

from gateway.litellm.dump import Record, mapping, number

RATES = {
    "rpm_limit": "requests_per_minute",
    "tpm_limit": "tokens_per_minute",
    "max_parallel_requests": "concurrency",
}
DAY, MONTH = ("1d", "24h", "86400s", "1440m"), ("1mo", "30d", "31d", "28d", "29d")
MILLION = Decimal(1_000_000)
NANO = Decimal("0.000000001")
# Whose names begin so, and have an address, is a server of one's own.
OWN = re.compile(
    r"(hosted_vllm|vllm|openai|text-completion-openai|openai_like|custom_openai|litellm_proxy)/"
)

Note = Callable[[str], None]


def limits(record: Record, place: str, note: Note) -> dict[str, Any]:
    """``rates``, ``budgets`` and the same by model, as tenants.yaml has them."""
    found: dict[str, Any] = {}
    if rates := _rates(record, place):
        found["rates"] = rates
    if budgets := _budgets(record.get("max_budget"), record.get("budget_duration"), place, note):
        found["budgets"] = budgets
    if models := _by_model(record, place, note):
        found["models"] = models
    if record.get("soft_budget") not in (None, ""):
        note(f"{place}: soft_budget has no counterpart; spend alerts tell of shares of a budget")
    return found


def _rates(record: Record, place: str) -> dict[str, int]:
    found = {}
    for theirs, ours in RATES.items():
        value = number(record, theirs, place)
        if value is not None:
            found[ours] = int(value)
    return found


def _budgets(usd: Any, duration: Any, place: str, note: Note) -> list[dict[str, Any]]:
    amount = number({"max_budget": usd}, "max_budget", place)
    if amount is None:
        return []
    if amount != (exact := amount.quantize(NANO, rounding=ROUND_DOWN)):
        note(f"{place}: its budget of ${amount} becomes ${exact}: amounts have 9 decimal places")
        amount = exact
    if duration in DAY:
        return [{"period": "day", "usd": amount}]
    if duration in MONTH:
        if duration != "1mo":
            note(f"{place}: its budget of {duration} becomes one of the calendar month (UTC)")
        return [{"period": "month", "usd": amount}]
    if duration in (None, ""):
        note(
            f"{place}: its budget of ${amount} has no period and is left out; what is paid once is"
            " credit: billing: prepaid, and `loratorio credit grant`"
        )
    else:
        note(
            f"{place}: its budget of ${amount} each {duration} is left out; periods are day, month"
        )
    return []


def _by_model(record: Record, place: str, note: Note) -> dict[str, Any]:
    metadata = mapping(record, "metadata")
    found: dict[str, dict[str, Any]] = {}
    for theirs, ours in (("model_rpm_limit", "requests_per_minute"),
                         ("model_tpm_limit", "tokens_per_minute")):  # fmt: skip
        limited = mapping(record, theirs) or mapping(metadata, theirs)
        for model in limited:
            value = number(limited, model, f"{place}: {theirs}")
            if value is not None:
                found.setdefault(model, {}).setdefault("rates", {})[ours] = int(value)
    for model, budget in mapping(record, "model_max_budget").items():
        usd, period = budget, record.get("budget_duration")
        if isinstance(budget, dict):
            usd = budget.get("budget_limit", budget.get("max_budget"))
            period = budget.get("time_period", budget.get("budget_duration"))
        if budgets := _budgets(usd, period, f"{place}: model {model}", note):
            found.setdefault(model, {})["budgets"] = budgets
    return found


def is_own(deployment: Record) -> bool:
    """Served by a server of one's own, which this one may replace."""
    settings = mapping(deployment, "litellm_params")
    return bool(OWN.match(str(settings.get("model", ""))) and settings.get("api_base"))


def price(deployment: Record, name: str) -> dict[str, Any] | None:
    """Dollars per million tokens; None where the config gives none."""
    place = f"model_list: {name}"
    meters = {**mapping(deployment, "litellm_params"), **mapping(deployment, "model_info")}
    given = number(meters, "input_cost_per_token", place)
    output = number(meters, "output_cost_per_token", place)
    if given is None and output is None:
        return None
    cached = number(meters, "cache_read_input_token_cost", place)
    given, output = given or Decimal(0), output or Decimal(0)
    return {
        "model": name,
        "input": plain(given * MILLION),
        "cached_input": plain((given if cached is None else cached) * MILLION),
        "output": plain(output * MILLION),
    }


def plain(value: Decimal) -> Decimal:
    """Without trailing zeros or exponent."""
    return Decimal(f"{value.normalize():f}")
