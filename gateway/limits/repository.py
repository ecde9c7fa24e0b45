"""Queries over quotas, budgets, plans, credits and alerts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.limits.models import AlertDelivery, Budget, Credit, Plan, Quota, SpendAlert
from gateway.limits.rules import Subject


class LimitRepository:
    """Of one organisation; of all of them, and of plans, where there is none."""

    def __init__(self, session: AsyncSession, organisation: str | None = None) -> None:
        self._session = session
        self._organisation = organisation

    def add(self, row: Quota | Budget | Plan | Credit | SpendAlert | AlertDelivery) -> None:
        self._session.add(row)

    async def quotas(self) -> Sequence[Quota]:
        statement = select(Quota).order_by(Quota.level, Quota.subject, Quota.model)
        if self._organisation is not None:
            statement = statement.where(Quota.organisation_id == self._organisation)
        return (await self._session.scalars(statement)).all()

    async def quota(self, subject: Subject) -> Quota | None:
        statement = select(Quota).where(
            Quota.level == subject.level,
            Quota.subject == subject.id,
            Quota.model == subject.model,
            or_(Quota.organisation_id.is_(None), Quota.organisation_id == self._organisation),
        )
        return (await self._session.scalars(statement)).one_or_none()

    async def budgets(self) -> Sequence[Budget]:
        statement = select(Budget).order_by(Budget.level, Budget.subject, Budget.model)
        if self._organisation is not None:
            statement = statement.where(Budget.organisation_id == self._organisation)
        return (await self._session.scalars(statement)).all()

    async def budget(self, subject: Subject, period: str) -> Budget | None:
        statement = select(Budget).where(
            Budget.level == subject.level,
            Budget.subject == subject.id,
            Budget.model == subject.model,
            Budget.period == period,
            or_(Budget.organisation_id.is_(None), Budget.organisation_id == self._organisation),
        )
        return (await self._session.scalars(statement)).one_or_none()

    async def remove(self, row: Quota | Budget | SpendAlert) -> None:
        await self._session.delete(row)

    async def plans(self) -> Sequence[Plan]:
        return (await self._session.scalars(select(Plan).order_by(Plan.name))).all()

    async def credits(self) -> Sequence[Credit]:
        """Oldest first."""
        statement = select(Credit).order_by(Credit.granted_at, Credit.id)
        if self._organisation is not None:
            statement = statement.where(Credit.organisation_id == self._organisation)
        return (await self._session.scalars(statement)).all()

    async def expired_credits(self, now: datetime) -> Sequence[Credit]:
        """Those of which it is not known what was left."""
        statement = (
            select(Credit)
            .where(Credit.expires_at <= now, Credit.lapsed_nano.is_(None))
            .order_by(Credit.expires_at, Credit.id)
        )
        return (await self._session.scalars(statement)).all()

    async def lapse(self, credit_id: str, nano: int) -> bool:
        """Once: False where it was known already."""
        statement = update(Credit).where(Credit.id == credit_id, Credit.lapsed_nano.is_(None))
        done: Any = await self._session.execute(statement.values(lapsed_nano=nano))
        return bool(done.rowcount)

    async def alerts(self, project: str | None = None) -> Sequence[SpendAlert]:
        """Of an organisation as a whole, or of one of its projects."""
        statement = select(SpendAlert).order_by(SpendAlert.created_at, SpendAlert.id)
        if self._organisation is not None:
            statement = statement.where(
                SpendAlert.organisation_id == self._organisation, SpendAlert.project_id == project
            )
        return (await self._session.scalars(statement)).all()

    async def alert(self, alert_id: str, project: str | None) -> SpendAlert | None:
        statement = select(SpendAlert).where(
            SpendAlert.id == alert_id,
            SpendAlert.organisation_id == self._organisation,
            SpendAlert.project_id == project,
        )
        return (await self._session.scalars(statement)).one_or_none()

    async def deliveries(self, period: str) -> Sequence[AlertDelivery]:
        statement = select(AlertDelivery).where(AlertDelivery.period == period)
        return (await self._session.scalars(statement)).all()

    async def due(self, now: datetime, most: int, *, attempts: int) -> Sequence[AlertDelivery]:
        """Those that were tried less often than that."""
        statement = (
            select(AlertDelivery)
            .where(AlertDelivery.delivered_at.is_(None), AlertDelivery.next_at <= now)
            .where(AlertDelivery.attempts < attempts)
            .order_by(AlertDelivery.next_at)
            .limit(most)
        )
        return (await self._session.scalars(statement)).all()

    async def attempt(self, delivery_id: str, attempts: int, again_at: datetime) -> bool:
        """One more. False: somebody else was quicker."""
        statement = update(AlertDelivery).where(
            AlertDelivery.id == delivery_id,
            AlertDelivery.attempts == attempts,
            AlertDelivery.delivered_at.is_(None),
        )
        done: Any = await self._session.execute(
            statement.values(attempts=attempts + 1, next_at=again_at),
            execution_options={"synchronize_session": False},
        )
        return bool(done.rowcount)

    async def delivered(self, delivery_id: str, at: datetime) -> None:
        statement = update(AlertDelivery).where(AlertDelivery.id == delivery_id)
        await self._session.execute(statement.values(delivered_at=at))

    async def forget_deliveries(self, alert_id: str) -> None:
        await self._session.execute(delete(AlertDelivery).where(AlertDelivery.alert_id == alert_id))
