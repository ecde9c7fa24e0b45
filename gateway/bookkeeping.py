"""What was used, what it cost and what is left: the usage log, the ledger and limits put together,
and what runs beside them as long as a gateway does."""

from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from gateway import redis
from gateway.alerts.message import load_secret
from gateway.alerts.outbox import Outbox
from gateway.billing.outbox import BillingOutbox
from gateway.billing.sinks import read_sinks
from gateway.books_watch import BooksWatch
from gateway.config import DataDir, Settings
from gateway.db import Database
from gateway.expiry import CreditExpiry
from gateway.fleet.fleet import Fleet
from gateway.limits.limiter import RateLimiter, memory_limiter, redis_limiter
from gateway.metrics import Metrics
from gateway.orphans import Orphans
from gateway.snapshot import LiveSnapshot
from gateway.spending import LedgerSpending, settle_orphans
from gateway.usage.event import Event
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.recorder import Recorder
from gateway.usage.retention import Retention
from gateway.usage.rollups import Rollups

Tasks = dict[str, Coroutine[Any, Any, None]]


class Bookkeeping:
    """Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        fleet: Fleet,
        snapshot: LiveSnapshot,
        recorder: Recorder,
    ) -> None:
        self._settings, self._database = settings, database
        self._fleet, self._snapshot = fleet, snapshot
        self.recorder = recorder
        self.ledger = self._ledger(recorder.log, live_from=recorder.first_segment)
        self.limiter = self._limiter(LedgerSpending(database, self.ledger))

    @classmethod
    async def opened(
        cls,
        stack: AsyncExitStack,
        settings: Settings,
        database: Database,
        fleet: Fleet,
        snapshot: LiveSnapshot,
    ) -> Self:
        """Closed with the stack: limits first, then the ledger has what the log has."""
        recorder = await Recorder.open(UsageLog(settings.usage_log_dir))
        stack.push_async_callback(recorder.close)
        books = cls(settings, database, fleet, snapshot, recorder)
        stack.push_async_callback(books.ledger.finish)
        stack.push_async_callback(books.limiter.close)
        return books

    def tasks(self, metrics: Metrics) -> Tasks:
        settings, database, rules = self._settings, self._database, self._snapshot.rules
        return {
            "ledger": self.ledger.run(settings.settle_interval_s),
            "rollups": Rollups(database).run(settings.rollup_interval_s),
            "limits": self.limiter.run(),
            "credits": CreditExpiry(database, self.limiter, rules).run(),
            "books": BooksWatch(database, self.limiter, rules, metrics).run(),
            **self._retention(),
            **self._alerts(),
            **self._sinks(metrics),
            **self._idle_logs(),
        }

    def _retention(self) -> Tasks:
        if (days := self._settings.usage_retention_days) is None:
            return {}
        return {"retention": Retention(self._database, days).run()}

    def _alerts(self) -> Tasks:
        settings = self._settings
        if (hook := settings.alert_webhook_url) is None:
            return {}
        file = DataDir(settings.data_dir).webhook_secret
        secret = load_secret(settings.alert_webhook_secret, file)
        return {"alerts": Outbox(self._database, hook, secret).run()}

    def _sinks(self, metrics: Metrics) -> Tasks:
        if (file := self._settings.sinks_file) is None:
            return {}
        return {
            f"sink {sink.name}": BillingOutbox(self._database, sink, watch=metrics.show_sink).run()
            for sink in read_sinks(file)
        }

    def _idle_logs(self) -> Tasks:
        """What workers left that there are no more of: nobody else brings it to the ledger."""
        if self._settings.worker != 0:
            return {}
        folders = DataDir(self._settings.data_dir).usage_logs(self._settings.workers)
        interval_s = self._settings.rollup_interval_s
        return {
            f"ledger {folder.name}": self._ledger(UsageLog(folder)).run(interval_s)
            for folder in folders
        }

    def _ledger(self, log: UsageLog, *, live_from: int | None = None) -> Ledger:
        return Ledger(
            log,
            self._database,
            live_from=live_from,
            lookup=Orphans(self._fleet).lookup,
            inherited=self._settle,
            patience_s=self._settings.orphan_patience_s,
        )

    async def _settle(self, events: Sequence[Event]) -> None:
        await settle_orphans(self.limiter, self._database, events)

    def _limiter(self, spending: LedgerSpending) -> RateLimiter:
        settings = self._settings
        more = {"rules": self._snapshot.rules, "spending": spending, "costs": spending.costs}
        if settings.redis_url is None:
            return memory_limiter(**more)
        return redis_limiter(
            redis.connect(settings.redis_url, timeout_s=settings.limit_deadline_s),
            deadline_s=settings.limit_deadline_s,
            recovery_s=settings.limit_recovery_s,
            **more,
        )
