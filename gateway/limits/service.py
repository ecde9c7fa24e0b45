"""Limits: set, changed, removed; credits granted. Runs inside the caller's unit of work."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from gateway.errors import InvalidRequest
from gateway.ids import made_ms, new_id
from gateway.limits.models import MOST_NANO, RATES, Budget, Credit, Exhaust, Level, Quota
from gateway.limits.period import DAY, MONTH, zone
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Allowance, Expiring, Rates, RuleBook, Subject

MOST = 10**12  # of a rate: a limit above is a typing error


class LimitService:
    """``organisation`` of None is for plans, which belong to nobody."""

    def __init__(self, session: AsyncSession, organisation: str | None, now: datetime) -> None:
        self._rows = LimitRepository(session, organisation)
        self._organisation = organisation
        self._now = now

    async def set_rates(self, subject: Subject, rates: Rates) -> Quota | None:
        """All of a subject's rates at once; None is returned where nothing is limited any more."""
        row = await self._rows.quota(subject)
        given = {name: _checked(name, value) for name, value in asdict(rates).items()}
        if all(value is None for value in given.values()):
            if row is not None:
                await self._rows.remove(row)
            return None
        if row is None:
            row = Quota(
                id=new_id("quo"),
                organisation_id=self._organisation,
                level=subject.level,
                subject=subject.id,
                model=subject.model,
            )
            self._rows.add(row)
        for name, value in given.items():
            setattr(row, name, value)
        row.updated_at = self._now
        return row

    async def rates(self, subject: Subject) -> Rates:
        row = await self._rows.quota(subject)
        return rates_of(row) if row else Rates()

    async def set_budget(
        self,
        subject: Subject,
        period: str,
        nano: int,
        *,
        time_zone: str = "UTC",
        on_exhaust: str = Exhaust.CUT,
    ) -> Budget:
        """Money for each calendar day or month. Raises InvalidRequest."""
        if subject.level is Level.TAG:
            raise InvalidRequest("a tag has rates, and no budget", param="budgets")
        if period not in (DAY, MONTH):
            raise InvalidRequest(f"period {period[:16]!r}: day or month", param="period")
        if on_exhaust not in tuple(Exhaust):
            raise InvalidRequest(
                f"on_exhaust {on_exhaust[:16]!r}: cut or finish", param="on_exhaust"
            )
        zone(time_zone)
        _check_money(nano, least=0)
        row = await self._rows.budget(subject, period)
        if row is None:
            row = Budget(
                id=new_id("bud"),
                organisation_id=self._organisation,
                level=subject.level,
                subject=subject.id,
                model=subject.model,
                period=period,
            )
            self._rows.add(row)
        elif row.time_zone != time_zone:
            row.id = new_id("bud")  # its counter is another, which may be there from before
        row.time_zone, row.amount_nano, row.on_exhaust = time_zone, nano, on_exhaust
        row.updated_at = self._now
        return row

    async def remove_budget(self, subject: Subject, period: str) -> bool:
        row = await self._rows.budget(subject, period)
        if row is not None:
            await self._rows.remove(row)
        return row is not None

    def grant(self, nano: int, *, note: str = "", expires_at: datetime | None = None) -> Credit:
        """Prepaid money. Raises InvalidRequest."""
        _check_money(nano, least=1)
        if expires_at is not None and expires_at <= self._now:
            raise InvalidRequest("the expiry is in the past", param="expires_at")
        if len(note) > 256:
            raise InvalidRequest("a note has at most 256 characters", param="note")
        assert self._organisation is not None, "credit is an organisation's"
        row = Credit(
            id=new_id("crd"),
            organisation_id=self._organisation,
            amount_nano=nano,
            note=note,
            granted_at=self._now,
            expires_at=expires_at,
            lapsed_nano=None,
        )
        self._rows.add(row)
        return row


def rates_of(row: Quota) -> Rates:
    return Rates(**{name: getattr(row, name) for name in RATES})


async def rule_book(
    session: AsyncSession,
    plans: dict[str, str],
    prepaid: frozenset[str],
    now: datetime,
    *,
    version: int = 0,
    replaced: Mapping[str, str] | None = None,
) -> RuleBook:
    """Every limit there is. ``plans``: of organisations; ``prepaid``: those that pay beforehand;
    ``replaced``: keys that took another's place."""
    rows = LimitRepository(session)
    rates = {_subject(row): rates_of(row) for row in await rows.quotas()}
    allowances: dict[Subject, tuple[Allowance, ...]] = {}
    for row in await rows.budgets():
        allowance = Allowance(
            period=row.period,
            time_zone=row.time_zone,
            nano=row.amount_nano,
            soft=row.on_exhaust == Exhaust.FINISH,
            begun=made_ms(row.id),
        )
        allowances[_subject(row)] = (*allowances.get(_subject(row), ()), allowance)
    for organisation, credit in _balances(await rows.credits(), prepaid, now).items():
        subject = Subject(Level.ORGANISATION, organisation)
        allowances[subject] = (*allowances.get(subject, ()), credit)
    return RuleBook(rates, allowances, plans, version, replaced or {})


def _balances(
    credits: Sequence[Credit], prepaid: frozenset[str], now: datetime
) -> dict[str, Allowance]:
    """What each prepaid organisation may have spent since its first credit, in all."""
    balances = {name: Allowance(period=None, nano=0, since=now) for name in prepaid}
    for row in credits:
        if (known := balances.get(row.organisation_id)) is not None:
            since = min(known.since or row.granted_at, row.granted_at)
            expiring = known.expiring
            if row.expires_at is not None and row.lapsed_nano is None:
                expiring = (*expiring, Expiring(row.expires_at, row.amount_nano))
            balances[row.organisation_id] = Allowance(
                period=None,
                nano=known.nano + row.amount_nano - (row.lapsed_nano or 0),
                since=since,
                expiring=expiring,
            )
    return balances


def _subject(row: Quota | Budget) -> Subject:
    return Subject(Level(row.level), row.subject, row.model)


def _checked(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= MOST:
        raise InvalidRequest(f"{name} {value}: from 0 to {MOST}", param=name)
    return value


def _check_money(nano: int, *, least: int) -> None:
    if not least <= nano <= MOST_NANO:
        raise InvalidRequest(
            f"{nano} nano-dollars: from {least} to {MOST_NANO}", param="threshold_amount"
        )
