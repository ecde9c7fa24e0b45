"""Rule books for tests, and limiters over both stores."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import uuid4

from gateway.identity.principal import Principal
from gateway.limits.lease import Demand, Price
from gateway.limits.limiter import RateLimiter, nothing_spent
from gateway.limits.models import Level
from gateway.limits.rules import Allowance, Rates, RuleBook, Subject
from gateway.limits.store import Store
from gateway.usage.pricing import Tariff, cost
from gateway.usage.pricing import Tokens as Meters
from gateway.usage.record import Finished

TARIFF = Tariff(id="prc_1", effective_from=datetime(2026, 1, 1, tzinfo=UTC), input=1_000,
                cached_input=100, output=2_000)  # fmt: skip
PRICE = Price(input=1_000, cached_input=100, output=2_000)  # 1 nano a token in, 2 out


class Now:
    """A wall clock that moves when told."""

    def __init__(self, text: str = "2026-12-15T12:00:00+00:00") -> None:
        self.at = datetime.fromisoformat(text)

    def __call__(self) -> datetime:
        return self.at.astimezone(UTC)

    def ms(self) -> int:
        return int(self.at.timestamp() * 1000)


def somebody() -> Principal:
    """Whom no other test knows: stores are shared."""
    mark = uuid4().hex
    return Principal(
        organisation=f"org_{mark}", project=f"prj_{mark}", project_name="acme",
        key=f"key_{mark}", tenant="t",
    )  # fmt: skip


def charged(ended: Iterable[Finished]) -> int:
    """What the records of requests say, priced by TARIFF as the ledger does."""
    return sum(
        cost(TARIFF, Meters(input=r.prompt_tokens - r.cached_tokens, cached_input=r.cached_tokens,
                            output=r.completion_tokens)).total
        for r in ended
    )  # fmt: skip


def book(
    rates: Mapping[tuple[str, ...], Rates] | None = None,
    money: Mapping[tuple[str, ...], Allowance] | None = None,
    plans: dict[str, str] | None = None,
) -> RuleBook:
    """Subjects are (level, id) or (level, id, model)."""
    return RuleBook(
        {_subject(key): value for key, value in (rates or {}).items()},
        {_subject(key): (value,) for key, value in (money or {}).items()},
        plans or {},
    )


def limiter_of(store: Store, rules: RuleBook, *, spending=nothing_spent, now=None) -> RateLimiter:
    more = {} if now is None else {"now": now}
    return RateLimiter(store, rules=lambda: rules, spending=spending, **more)


def monthly(nano: int, *, soft: bool = False, time_zone: str = "UTC") -> Allowance:
    return Allowance(period="month", nano=nano, soft=soft, time_zone=time_zone)


def demand(prompt: int = 10, block: int = 20, most: int = 100, price=PRICE) -> Demand:
    return Demand(price=price, prompt=prompt, block=block, most=most, slack=0)


def _subject(key: tuple[str, ...]) -> Subject:
    level, *rest = key
    return Subject(Level(level), *rest)
