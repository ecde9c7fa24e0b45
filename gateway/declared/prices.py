"""Plans and prices of a file: what belongs to no organisation."""

from sqlalchemy.exc import IntegrityError

from gateway.declared.change import Mark
from gateway.declared.declaration import Declaration, DeclaredPrice
from gateway.declared.work import Work
from gateway.ids import new_id
from gateway.limits.models import Level, Plan
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Subject
from gateway.usage.pricing import Tariff, pico_per_token
from gateway.usage.repository import LedgerRepository
from gateway.usage.service import PriceList

Meters = tuple[int, int, int]


async def bring_about_plans(work: Work, declared: Declaration) -> None:
    rows = LimitRepository(work.session)
    known = {row.name: row for row in await rows.plans()}
    for name, limits in declared.plans.items():
        path = f"plans.{name}"
        row = known.get(name)
        if row is None:
            row = Plan(id=new_id("plan"), name=name, created_at=work.now)
            rows.add(row)
            work.changed(Mark.MADE, path)
            await work.note("", "plan.created", row.id, name=name)
        await work.limit(path, None, Subject(Level.PLAN, row.id), limits)


async def bring_about_prices(work: Work, declared: Declaration) -> None:
    """One that is in force is left; else another row begins, and none is ever changed."""
    for price in declared.prices:
        since = price.since or work.now
        book = await LedgerRepository(work.session).price_book()
        subject = price.adapter or price.model or ""
        known = book.at(subject, price.adapter, since, price.tier)
        if known is not None and not _is_its_own(known, price):
            known = None
        now_on = price.since is None
        if (
            known is not None
            and (now_on or known.effective_from == price.since)
            and _meters(known) == _declared(price)
        ):
            continue
        path = f"prices.{subject}" + (f" ({price.tier})" if price.tier != "default" else "")
        with price.spot.named():
            row = PriceList(work.session, work.now).set(
                price.model, price.prices, adapter_id=price.adapter, tier=price.tier,
                effective_from=price.since,
            )  # fmt: skip
        before = _shown(_meters(known)) if known else "unpriced"
        after = f"{_shown(_declared(price))} from {since:%Y-%m-%dT%H:%M}Z"
        work.changed(Mark.CHANGED, path, before, after)
        try:
            await work.note("", "price.created", row.id, subject=subject, tier=price.tier)
        except IntegrityError as error:
            raise price.spot.wrong(f"there is no adapter {subject[:64]!r}") from error


def _is_its_own(known: Tariff, price: DeclaredPrice) -> bool:
    """Not that of the default tier, which stands in for one without a price."""
    return known.tier == price.tier


def _meters(tariff: Tariff) -> Meters:
    return tariff.input, tariff.cached_input, tariff.output


def _declared(price: DeclaredPrice) -> Meters:
    given, cached, output = (pico_per_token(text, param="price") for text in price.prices)
    return given, cached, output


def _shown(meters: Meters) -> str:
    """Dollars per million tokens."""
    return " / ".join(f"${pico / 10**6:g}" for pico in meters)
