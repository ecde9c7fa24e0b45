"""What a refusal says: whose limit binds, how much of it is left, and when to come again."""

from gateway.errors import (
    Bound,
    BudgetExhausted,
    BudgetReserved,
    ConcurrencyLimited,
    DayLimited,
    GatewayError,
    ModelUnpriced,
    NeverWithinTokenLimit,
    RequestsLimited,
    TokensLimited,
)
from gateway.limits.bucket import remaining
from gateway.limits.lease import Headroom, duration
from gateway.limits.models import Level
from gateway.limits.rules import Rule
from gateway.limits.store import Ask, Kind, Unit, Verdict

LONGEST_RETRY_S = 120.0  # official clients do not wait longer
CODES = {
    Level.ORGANISATION: "organization_spend_limit_exceeded",
    Level.PLAN: "organization_spend_limit_exceeded",
    Level.PROJECT: "project_spend_limit_exceeded",
}


def too_large(rule: Rule, ask: Ask, headroom: Headroom) -> GatewayError:
    """One request asks for more than the whole limit: it can never pass."""
    message = (
        f"Request too large for {rule.shown} on {rule.words}: "
        f"limit {ask.limit}, requested {ask.cost}. Ask for fewer {ask.unit}."
    )
    if not ask.limit:
        message = f"No request is allowed for {rule.shown}: its limit of {rule.words} is 0."
    return NeverWithinTokenLimit(
        message,
        headers=headroom.headers(),
        bound=bound_of(rule),
    )


def unpriced(model: str) -> GatewayError:
    return ModelUnpriced(
        f"The model {model[:200]!r} has no price, and a budget applies to this request."
    )


def refusal(rule: Rule, ask: Ask, verdict: Verdict, headroom: Headroom) -> GatewayError:
    wait = verdict.wait_ms / 1000
    level, held = verdict.levels[verdict.binding], verdict.held[verdict.binding]
    headers, bound = headroom.headers(), bound_of(rule)
    if ask.kind is Kind.MONEY:
        if level + ask.least <= ask.limit:
            return BudgetReserved(
                f"{budget_message(rule)} What is left of it is reserved by requests under way "
                f"({_dollars(held)} of {_dollars(ask.limit)}).",
                code=budget_code(rule),
                retry_after=wait,
                headers=headers,
                bound=bound,
            )
        return BudgetExhausted(
            f"{budget_message(rule)} Spent {_dollars(level)} of {_dollars(ask.limit)}.",
            code=budget_code(rule),
            headers=headers,
            bound=bound,
        )
    if ask.kind is Kind.SLOTS:
        return ConcurrencyLimited(
            f"Limit reached for {rule.shown} on {rule.words}: limit {ask.limit}, running {level}.",
            retry_after=wait,
            headers=headers,
            bound=bound,
        )
    left = remaining(level, ask.limit) if ask.kind is Kind.RATE else max(0, ask.limit - level)
    kind = RequestsLimited if ask.unit is Unit.REQUESTS else TokensLimited
    if wait > LONGEST_RETRY_S:
        kind = DayLimited
    return kind(
        f"Rate limit reached for {rule.shown} on {rule.words}: limit {ask.limit}, "
        f"remaining {left}, requested {ask.cost}. Try again in {duration(wait)}.",
        retry_after=wait,
        headers=headers,
        bound=bound,
    )


def bound_of(rule: Rule) -> Bound:
    subject = rule.subject
    words = f"{rule.words} on {subject.model}" if subject.model else rule.words
    return Bound(str(subject.level), subject.id, words)


def budget_code(rule: Rule) -> str:
    if rule.period is None:
        return "credit_balance_exhausted"
    return CODES.get(rule.subject.level, "insufficient_quota")


def budget_message(rule: Rule) -> str:
    if rule.period is None:
        return f"The prepaid credit of {rule.shown} is used up."
    return f"The budget of {rule.shown} for this {rule.period} is used up."


def _dollars(nano: int) -> str:
    return f"${nano / 10**9:.9f}".rstrip("0").rstrip(".")
