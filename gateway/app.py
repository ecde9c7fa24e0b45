"""The composition root: every object of a gateway is made here, opened and closed in one place."""

import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import APIRouter
from redis.asyncio import Redis
from starlette.types import ASGIApp

from adapters.errors import StoreUnusable
from adapters.stores import open_parts, open_store
from engine.otlp import TracingUnavailable, open_provider
from gateway import redis
from gateway.adapter_api.callers import Callers
from gateway.adapter_api.canary import Canary
from gateway.adapter_api.desk import AdapterDesk
from gateway.adapter_api.probe import probe_tokens
from gateway.adapter_api.publisher import Publisher
from gateway.adapter_api.residents import Residents
from gateway.adapter_api.routes import adapter_router
from gateway.adapter_api.staging import Staging
from gateway.adapter_api.sweep import Sweep
from gateway.adapter_api.vllm import vllm_router
from gateway.admin.desk import AdminDesk
from gateway.admin.routes import admin_router
from gateway.alerts.message import load_secret
from gateway.alerts.outbox import Outbox
from gateway.background import Background
from gateway.base_specs import bases_of, read_specs
from gateway.batches.composition import Batches
from gateway.billing.outbox import BillingOutbox
from gateway.billing.sinks import read_sinks
from gateway.books_watch import BooksWatch
from gateway.catalog.service import Quota
from gateway.config import ConfigError, DataDir, Settings
from gateway.cors import with_cors
from gateway.dashboard.books import Books
from gateway.dashboard.site import Site
from gateway.dashboard.sources import Sources
from gateway.db import Database
from gateway.expiry import CreditExpiry
from gateway.fleet.directory import open_directory
from gateway.fleet.fleet import Fleet
from gateway.fleet.handoffs import HandoffRule
from gateway.health import Health
from gateway.http import Asgi, Receive, Scope, Send
from gateway.idempotency.answers import Answers, MemoryAnswers
from gateway.idempotency.redis_answers import RedisAnswers
from gateway.identity.logins import Logins
from gateway.identity.oidc_provider import Provider
from gateway.identity.oidc_settings import read_oidc
from gateway.identity.passwords import Passwords
from gateway.identity.pepper import Peppers
from gateway.ids import new_id
from gateway.inference.base_text import BaseText
from gateway.inference.gate import Gate
from gateway.inference.grammars import GrammarCheck
from gateway.inference.intake import Intake
from gateway.inference.intakes import Intakes
from gateway.inference.routes import Routes
from gateway.inference.services import Services
from gateway.inference.tokenization import Tokenization
from gateway.limits.limiter import RateLimiter, memory_limiter, redis_limiter
from gateway.metrics import Metrics
from gateway.metrics_names import Names
from gateway.metrics_page import MetricsPage
from gateway.orphans import Orphans
from gateway.refusals.keeper import RefusalKeeper
from gateway.refusals.tally import Tally
from gateway.responses.archive import Archive
from gateway.responses.endpoint import ResponseEndpoint
from gateway.responses.routes import response_router
from gateway.rest import rest_application
from gateway.snapshot import LiveSnapshot
from gateway.spending import LedgerSpending, settle_orphans
from gateway.texts.keeper import TextKeeper
from gateway.tracing import Tracing
from gateway.usage.ledger import Ledger
from gateway.usage.log import UsageLog
from gateway.usage.recorder import Recorder
from gateway.usage.retention import Retention
from gateway.usage.rollups import Rollups

TOKENISING_THREADS = LOOKING_THREADS = 2
log = logging.getLogger(__name__)


def create_app(settings: Settings) -> "Application":
    """Opens nothing yet."""
    return Application(settings)


class Application:
    """The ASGI application of the API's port. Belongs to one event loop.

    application = create_app(settings)
    async with application.opened():
        await Listener(application, "127.0.0.1", 8000).run_until_stopped()
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._specs = read_specs(settings)
        self._bases = bases_of(settings, self._specs)
        self._metrics = Metrics()
        self._fleet = Fleet(
            open_directory(settings.engines, settings.redis_url),
            gateway=new_id("log"),
            bases=self._bases.fingerprints,
            silence_s=settings.engine_silence_s,
            credentials=settings.engine_credentials,
            handoffs=HandoffRule(settings.handoff_least_tokens, settings.handoff_queue_tokens),
        )
        self._routes: Asgi | None = None
        self._health: Health | None = None
        self._sweep: Sweep | None = None
        self._adapters: AdapterDesk | None = None
        self._snapshot: LiveSnapshot | None = None
        self._announcer: Redis | None = None
        self.metrics_page = MetricsPage(self._metrics, self._fleet)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        assert self._routes is not None, "opened() comes first"
        return self._routes(scope, receive, send)

    def stopping(self) -> None:
        """From here on /readyz says no, so that nobody is sent here any more."""
        if self._health is not None:
            self._health.stopping = True

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Everything that requests need, for as long as the block runs.

        Raises ConfigError, TokenizerInvalid or DatabaseUnavailable; later, whatever a part of the
        gateway failed with.
        """
        settings = self._settings
        async with AsyncExitStack() as stack:
            texts = await self._texts(stack)
            database = Database(settings.database, notify=self._published)
            stack.push_async_callback(database.close)
            peppers = Peppers.load(settings.pepper, settings.pepper_file)
            snapshot = LiveSnapshot(
                database,
                peppers,
                base_model=self._bases,
                open_tenant=settings.open_tenant if settings.open else None,
                poll_s=settings.epoch_poll_s,
            )
            await snapshot.refresh()
            self.metrics_page.names = Names(snapshot.names_of, snapshot.project_of)
            self._snapshot = snapshot
            recorder = await Recorder.open(UsageLog(settings.usage_log_dir))
            stack.push_async_callback(recorder.close)
            ledger = Ledger(
                recorder.log,
                database,
                live_from=recorder.first_segment,
                lookup=Orphans(self._fleet).lookup,
                inherited=lambda events: settle_orphans(limiter, database, events),
                patience_s=settings.orphan_patience_s,
            )
            stack.push_async_callback(ledger.finish)
            limiter = self._limiter(snapshot, LedgerSpending(database, ledger))
            stack.push_async_callback(limiter.close)
            self.metrics_page.limiter = limiter
            self._health = Health(
                self._fleet,
                lambda: snapshot.age_s,
                records=lambda: recorder.healthy,
                shared_limits=lambda: not limiter.degraded,
            )
            residents = Residents(self._fleet, snapshot)
            answers = self._answers(stack)
            keeper = TextKeeper(
                database, lambda base, tokens: services.tokenizer_of(base).text(tokens)
            )
            refusals = RefusalKeeper(database, Tally(), days=settings.usage_retention_days)
            stack.push_async_callback(refusals.close)
            services = Services(
                gate=Gate(
                    snapshot,
                    open_to_this_machine=settings.open,
                    forwarded_hops=settings.forwarded_hops,
                ),
                limiter=limiter,
                recorder=recorder,
                fleet=self._fleet,
                tokenizer=texts[self._bases.first].tokenizer,
                other_tokenizers={name: text.tokenizer for name, text in texts.items()},
                metrics=self._metrics,
                max_body_bytes=settings.max_body_bytes,
                max_inflight=settings.max_inflight,
                tariff=snapshot.tariff,
                residents=residents,
                answers=answers,
                texts=keeper,
                refusals=refusals.tally,
                tracing=self._tracing(stack),
            )
            prompts = texts[self._bases.first].prompts
            grammars = GrammarCheck()
            stack.callback(grammars.close)
            intake = Intakes(
                snapshot,
                {name: self._intake(text, snapshot, grammars) for name, text in texts.items()},
            )
            archive = Archive(database, days=settings.response_days)
            responses = ResponseEndpoint(intake.chat, archive)
            batches = Batches(
                settings,
                database,
                services,
                intake,
                snapshot,
                owner=recorder.log.id,
                more={"/v1/responses": responses.endpoint},
            )
            adapter_routers = self._adapter_routers(
                services.gate, database, residents, await probe_tokens(prompts)
            )
            routes = Routes(
                services,
                intake,
                snapshot,
                tokenization=self._tokenization(texts, snapshot),
                responses=responses,
                health=self._health,
                behind=rest_application(
                    self._health,
                    base_model=settings.served_model_name,
                    is_open=settings.open,
                    dashboard=self._dashboard(database, snapshot, limiter, peppers),
                    routers=[
                        *adapter_routers,
                        admin_router(self._desk(database, snapshot, peppers)),
                        *batches.routers,
                        response_router(services.gate, archive),
                    ],
                ),
            )
            self._routes = with_cors(routes, settings.allowed_origins)
            tasks = {**self._tasks(database, snapshot, ledger), "limits": limiter.run()}
            tasks["credits"] = CreditExpiry(database, limiter, snapshot.rules).run()
            if (days := settings.usage_retention_days) is not None:
                tasks["retention"] = Retention(database, days).run()
            if (hook := settings.alert_webhook_url) is not None:
                file = DataDir(settings.data_dir).webhook_secret
                secret = load_secret(settings.alert_webhook_secret, file)
                tasks["alerts"] = Outbox(database, hook, secret).run()
            watch = BooksWatch(database, limiter, snapshot.rules, self._metrics)
            tasks["books"] = watch.run()
            if settings.sinks_file is not None:
                for sink in read_sinks(settings.sinks_file):
                    outbox = BillingOutbox(database, sink, watch=self._metrics.show_sink)
                    tasks[f"sink {sink.name}"] = outbox.run()
            tasks["answers"] = answers.run()
            tasks["texts"] = keeper.run()
            tasks["refusals"] = refusals.run()
            tasks["pins"] = residents.keep()
            tasks |= {**batches.tasks(), "responses": archive.run()}
            if settings.worker == 0:
                tasks |= self._idle_logs(database, limiter)
            if self._sweep is not None:
                tasks["sweep"] = self._sweep.run()
            await stack.enter_async_context(Background(tasks))
            yield

    async def _texts(self, stack: AsyncExitStack) -> dict[str, BaseText]:
        """Of every base, the first one first."""
        settings = self._settings
        tokenising = ThreadPoolExecutor(TOKENISING_THREADS, thread_name_prefix="tokenise")
        looking = ThreadPoolExecutor(LOOKING_THREADS, thread_name_prefix="look")
        stack.enter_context(tokenising)
        stack.enter_context(looking)
        folders = {settings.served_model_name: settings.model_dir}
        folders |= {base.name: base.model_dir for base in settings.other_bases}
        return {
            name: await BaseText.load(
                folder,
                tokenising=tokenising,
                looking=looking,
                call_style=settings.tool_call_parser,
                public=settings.public_system_prompts,
                recommended=settings.generation_config == "auto",
            )
            for name, folder in folders.items()
        }

    def _intake(self, text: BaseText, names: LiveSnapshot, grammars: GrammarCheck) -> Intake:
        return Intake(
            names,
            text.prompts,
            self._fleet,
            grammars=grammars,
            calls=text.calls,
            deadline_ms=int(self._settings.request_timeout_s * 1000),
            priority_tier=self._settings.priority_tier,
            public=text.public,
            sight=text.sight,
            unsaid=text.unsaid,
        )

    def _tokenization(self, texts: dict[str, BaseText], names: LiveSnapshot) -> Tokenization:
        made = {
            name: Tokenization(names, text.prompts, self._fleet, text.sight)
            for name, text in texts.items()
            if name != self._bases.first
        }
        first = texts[self._bases.first]
        return Tokenization(names, first.prompts, self._fleet, first.sight, others=made)

    def _tracing(self, stack: AsyncExitStack) -> Tracing | None:
        if (collector := self._settings.otlp_traces_endpoint) is None:
            return None
        try:
            tracing = Tracing(open_provider(collector, "loratorio-gateway"))
        except TracingUnavailable as error:
            raise ConfigError(str(error)) from error
        stack.callback(tracing.close)
        return tracing

    def _adapter_routers(
        self, gate: Gate, database: Database, residents: Residents, probe: Sequence[int]
    ) -> list[APIRouter]:
        """None where nobody wrote down what the base is: there is nothing to check against."""
        settings = self._settings
        if not self._specs:
            log.warning("no %s: adapters cannot be uploaded here", settings.base_spec_file)
            return []
        try:
            store = open_store(
                settings.adapter_store,
                cache=settings.adapter_cache,
                max_bytes=settings.max_adapter_bytes,
            )
        except StoreUnusable as error:
            raise ConfigError(f"adapter_store_url: {error}") from error
        parts = open_parts(settings.adapter_store, local=settings.upload_dir)
        staging = Staging(settings.upload_dir, parts, settings.max_adapter_bytes)
        publisher = Publisher(
            database,
            staging,
            store,
            self._specs,
            Canary(self._fleet, probe, enabled=settings.adapter_canary),
            quota=Quota(settings.adapters_per_tenant, settings.adapter_bytes_per_tenant),
        )
        self._sweep = Sweep(database, staging, store, request_timeout_s=settings.request_timeout_s)
        callers = Callers(gate, database)
        self._adapters = AdapterDesk(publisher, residents)
        return [adapter_router(callers, publisher, residents), vllm_router(callers, publisher)]

    async def _published(self) -> None:
        """Whoever is told that a change is made may rely on it here with the next request."""
        if self._snapshot is not None:
            await self._snapshot.look()
        if self._announcer is not None:
            await redis.announce(self._announcer)

    def _desk(self, database: Database, snapshot: LiveSnapshot, peppers: Peppers) -> AdminDesk:
        return AdminDesk(
            database,
            lambda key: snapshot.recognise(key, strictly=True),
            peppers,
            bases=self._bases.names,
            operator=self._settings.operator_organisation,
        )

    def _dashboard(
        self, database: Database, snapshot: LiveSnapshot, limiter: RateLimiter, peppers: Peppers
    ) -> ASGIApp:
        assert self._health is not None, "it is made before what shows it"
        sources = Sources(
            snapshot=snapshot,
            limiter=limiter,
            fleet=self._fleet,
            health=self._health,
            peppers=peppers,
            books=Books(database, self._fleet, limiter),
            base_model=self._settings.served_model_name,
            key_environment=self._settings.key_environment,
            uploads=self._adapters is not None,
        )
        hops = self._settings.forwarded_hops
        logins = Logins(database, Passwords())
        file = self._settings.oidc_file
        provider = Provider(read_oidc(file)) if file is not None else None
        site = Site(
            database,
            logins,
            sources,
            forwarded_hops=hops,
            provider=provider,
            adapters=self._adapters,
        )
        return site.application()

    def _tasks(
        self, database: Database, snapshot: LiveSnapshot, ledger: Ledger
    ) -> dict[str, Coroutine[Any, Any, None]]:
        tasks = {
            "fleet": self._fleet.run(),
            "snapshot": snapshot.follow(),
            "ledger": ledger.run(self._settings.settle_interval_s),
            "rollups": Rollups(database).run(self._settings.rollup_interval_s),
        }
        if (url := self._settings.redis_url) is not None:
            client = redis.connect(url, timeout_s=redis.SILENCE_S * 2)
            tasks["announcements"] = redis.listen(client, snapshot.hint)
            self._announcer = redis.connect(url, timeout_s=self._settings.limit_deadline_s)
        return tasks

    def _idle_logs(
        self, database: Database, limiter: RateLimiter
    ) -> dict[str, Coroutine[Any, Any, None]]:
        """What workers left that there are no more of: nobody else brings it to the ledger."""
        tasks: dict[str, Coroutine[Any, Any, None]] = {}
        for folder in DataDir(self._settings.data_dir).usage_logs(self._settings.workers):
            ledger = Ledger(
                UsageLog(folder),
                database,
                lookup=Orphans(self._fleet).lookup,
                inherited=lambda events: settle_orphans(limiter, database, events),
                patience_s=self._settings.orphan_patience_s,
            )
            tasks[f"ledger {folder.name}"] = ledger.run(self._settings.rollup_interval_s)
        return tasks

    def _limiter(self, snapshot: LiveSnapshot, spending: LedgerSpending) -> RateLimiter:
        settings = self._settings
        more = {"rules": snapshot.rules, "spending": spending, "costs": spending.costs}
        if settings.redis_url is None:
            return memory_limiter(**more)
        return redis_limiter(
            redis.connect(settings.redis_url, timeout_s=settings.limit_deadline_s),
            deadline_s=settings.limit_deadline_s,
            recovery_s=settings.limit_recovery_s,
            **more,
        )

    def _answers(self, stack: AsyncExitStack) -> Answers:
        """Those that are kept under idempotency keys."""
        url, deadline_s = self._settings.redis_url, self._settings.limit_deadline_s
        if url is None:
            return MemoryAnswers()
        client = redis.connect(url, timeout_s=deadline_s)
        stack.push_async_callback(client.aclose)
        return RedisAnswers(client, deadline_s=deadline_s)
