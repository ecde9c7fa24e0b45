"""Looks whether somebody has spent as much as an alert says, and writes down that it is to be told.

The message is fixed when it is written: what is sent again is the same. One threshold of one alert
is told once a month, whichever gateways look: the database takes it once.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from gateway.alerts.message import body_of
from gateway.db import Database
from gateway.errors import Conflict
from gateway.ids import new_id
from gateway.limits.models import AlertDelivery, SpendAlert
from gateway.limits.period import MONTH, Period, period_at
from gateway.limits.repository import LimitRepository
from gateway.usage.report import UsageReport, Window

LATE = timedelta(hours=1)  # what was spent in the last moments of a month is told in the next
Spent = Mapping[str, int]  # project ("" for all) -> nano-dollars


class SpendWatch:
    """Belongs to one event loop. Months are those of UTC, as ``spend_limit`` has them."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    async def look(self) -> int:
        """Returns how many alerts are to be told from now on."""
        now = self._now()
        periods = {period.id: period for period in map(_month, (now - LATE, now))}
        return sum([await self._look(period, now) for period in periods.values()])

    async def _look(self, period: Period, now: datetime) -> int:
        async with self._database.reading() as session:
            rows = LimitRepository(session)
            told = {(d.alert_id, d.threshold_nano) for d in await rows.deliveries(period.id)}
            waiting = [
                alert
                for alert in await rows.alerts()
                if (alert.id, alert.threshold_nano) not in told and alert.created_at < period.end
            ]
            spent = {
                owner: await _spent(UsageReport(session, owner), period)
                for owner in sorted({alert.organisation_id for alert in waiting})
            }
        done = 0
        for alert in waiting:
            nano = spent[alert.organisation_id].get(alert.project_id or "", 0)
            if nano >= alert.threshold_nano and await self._write(alert, period.id, nano, now):
                done += 1
        return done

    async def _write(self, alert: SpendAlert, period: str, spent: int, now: datetime) -> bool:
        name = new_id("msg")
        delivery = AlertDelivery(
            id=name,
            alert_id=alert.id,
            period=period,
            threshold_nano=alert.threshold_nano,
            body=body_of(alert, name, period=period, spent=spent, at=int(now.timestamp())),
            attempts=0,
            next_at=now,
            delivered_at=None,
        )
        try:
            async with self._database.unit_of_work() as session:
                LimitRepository(session).add(delivery)
        except Conflict:  # another gateway saw it first, or the alert was deleted
            return False
        return True


def _month(moment: datetime) -> Period:
    return period_at(moment, MONTH, "UTC")


async def _spent(report: UsageReport, period: Period) -> Spent:
    lines = await report.lines(Window(period.start, period.end), ("project_id",))
    found = {line.group[0]: line.usage.cost.total for line in lines}
    return found | {"": sum(found.values())}
