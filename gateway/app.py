"""The composition root: a gateway's parts are made, opened and closed here, in one place.

Parts of several objects put themselves together: ``Bookkeeping``, ``BaseTexts``, ``Batches``,
``Uploading``.
"""

import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.types import ASGIApp

from engine.otlp import TracingUnavailable, open_provider
from gateway import redis
from gateway.adapter_api.composition import Uploading
from gateway.adapter_api.probe import probe_tokens
from gateway.adapter_api.residents import Residents
from gateway.admin.desk import AdminDesk
from gateway.admin.routes import admin_router
from gateway.announcements import Announcements
from gateway.background import Background
from gateway.base_specs import bases_of, read_specs
from gateway.batches.composition import Batches
from gateway.bookkeeping import Bookkeeping
from gateway.config import ConfigError, Settings
from gateway.cors import with_cors
from gateway.dashboard.books import Books
from gateway.dashboard.site import Site
from gateway.dashboard.sources import Sources
from gateway.db import Database
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
from gateway.inference.base_texts import BaseTexts
from gateway.inference.gate import Gate
from gateway.inference.routes import Routes
from gateway.inference.services import Services
from gateway.metrics import Metrics
from gateway.metrics_names import Names
from gateway.metrics_page import MetricsPage
from gateway.refusals.keeper import RefusalKeeper
from gateway.refusals.tally import Tally
from gateway.responses.archive import Archive
from gateway.responses.endpoint import ResponseEndpoint
from gateway.responses.routes import response_router
from gateway.rest import rest_application
from gateway.snapshot import LiveSnapshot
from gateway.texts.keeper import TextKeeper
from gateway.tracing import Tracing

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
            texts = await BaseTexts.load(settings, stack)
            announcements = Announcements(settings)
            database = Database(settings.database, notify=announcements.published)
            stack.push_async_callback(database.close)
            peppers = Peppers.load(settings.pepper, settings.pepper_file)
            snapshot = await self._snapshot(database, peppers)
            announcements.snapshot = snapshot
            books = await Bookkeeping.opened(stack, settings, database, self._fleet, snapshot)
            health = self._health = self._watched(snapshot, books)
            residents = Residents(self._fleet, snapshot)
            answers = self._answers(stack)
            keeper = TextKeeper(database, texts.text_of)
            refusals = RefusalKeeper(database, Tally(), days=settings.usage_retention_days)
            stack.push_async_callback(refusals.close)
            services = Services(
                gate=Gate(
                    snapshot,
                    open_to_this_machine=settings.open,
                    forwarded_hops=settings.forwarded_hops,
                ),
                limiter=books.limiter,
                recorder=books.recorder,
                fleet=self._fleet,
                tokenizer=texts.first.tokenizer,
                other_tokenizers=texts.tokenizers,
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
            intake = texts.intakes(snapshot, self._fleet)
            archive = Archive(database, days=settings.response_days)
            responses = ResponseEndpoint(intake.chat, archive)
            batches = Batches(
                settings,
                database,
                services,
                intake,
                snapshot,
                owner=books.recorder.log.id,
                more={"/v1/responses": responses.endpoint},
            )
            uploading = await self._uploading(database, services.gate, residents, texts)
            routes = Routes(
                services,
                intake,
                snapshot,
                tokenization=texts.tokenization(snapshot, self._fleet),
                responses=responses,
                health=health,
                behind=rest_application(
                    health,
                    base_model=settings.served_model_name,
                    is_open=settings.open,
                    dashboard=self._dashboard(
                        database,
                        snapshot,
                        books,
                        health=health,
                        peppers=peppers,
                        uploading=uploading,
                    ),
                    routers=[
                        *(uploading.routers if uploading else ()),
                        admin_router(self._desk(database, snapshot, peppers)),
                        *batches.routers,
                        response_router(services.gate, archive),
                    ],
                ),
            )
            self._routes = with_cors(routes, settings.allowed_origins)
            tasks = {
                "fleet": self._fleet.run(),
                "snapshot": snapshot.follow(),
                "answers": answers.run(),
                "texts": keeper.run(),
                "refusals": refusals.run(),
                "pins": residents.keep(),
                "responses": archive.run(),
                **announcements.tasks(),
                **books.tasks(self._metrics),
                **batches.tasks(),
                **(uploading.tasks() if uploading else {}),
            }
            await stack.enter_async_context(Background(tasks))
            yield

    async def _snapshot(self, database: Database, peppers: Peppers) -> LiveSnapshot:
        settings = self._settings
        snapshot = LiveSnapshot(
            database,
            peppers,
            base_model=self._bases,
            open_tenant=settings.open_tenant if settings.open else None,
            poll_s=settings.epoch_poll_s,
        )
        await snapshot.refresh()
        return snapshot

    def _watched(self, snapshot: LiveSnapshot, books: Bookkeeping) -> Health:
        """What /readyz and the page of metrics show from here on."""
        self.metrics_page.names = Names(snapshot.names_of, snapshot.project_of)
        self.metrics_page.limiter = books.limiter
        return Health(
            self._fleet,
            lambda: snapshot.age_s,
            records=lambda: books.recorder.healthy,
            shared_limits=lambda: not books.limiter.degraded,
        )

    async def _uploading(
        self, database: Database, gate: Gate, residents: Residents, texts: BaseTexts
    ) -> Uploading | None:
        """None where nobody wrote down what the base is: there is nothing to check against."""
        settings = self._settings
        if not self._specs:
            log.warning("no %s: adapters cannot be uploaded here", settings.base_spec_file)
            return None
        probe = await probe_tokens(texts.first.prompts)
        return Uploading(settings, self._specs, database, self._fleet, gate, residents, probe=probe)

    def _desk(self, database: Database, snapshot: LiveSnapshot, peppers: Peppers) -> AdminDesk:
        return AdminDesk(
            database,
            lambda key: snapshot.recognise(key, strictly=True),
            peppers,
            bases=self._bases.names,
            operator=self._settings.operator_organisation,
        )

    def _dashboard(
        self,
        database: Database,
        snapshot: LiveSnapshot,
        books: Bookkeeping,
        *,
        health: Health,
        peppers: Peppers,
        uploading: Uploading | None,
    ) -> ASGIApp:
        sources = Sources(
            snapshot=snapshot,
            limiter=books.limiter,
            fleet=self._fleet,
            health=health,
            peppers=peppers,
            books=Books(database, self._fleet, books.limiter),
            base_model=self._settings.served_model_name,
            key_environment=self._settings.key_environment,
            uploads=uploading is not None,
        )
        file = self._settings.oidc_file
        site = Site(
            database,
            Logins(database, Passwords()),
            sources,
            forwarded_hops=self._settings.forwarded_hops,
            provider=Provider(read_oidc(file)) if file is not None else None,
            uploads=uploading.uploads if uploading else None,
        )
        return site.application()

    def _tracing(self, stack: AsyncExitStack) -> Tracing | None:
        if (collector := self._settings.otlp_traces_endpoint) is None:
            return None
        try:
            tracing = Tracing(open_provider(collector, "loratorio-gateway"))
        except TracingUnavailable as error:
            raise ConfigError(str(error)) from error
        stack.callback(tracing.close)
        return tracing

    def _answers(self, stack: AsyncExitStack) -> Answers:
        """Those that are kept under idempotency keys."""
        url, deadline_s = self._settings.redis_url, self._settings.limit_deadline_s
        if url is None:
            return MemoryAnswers()
        client = redis.connect(url, timeout_s=deadline_s)
        stack.push_async_callback(client.aclose)
        return RedisAnswers(client, deadline_s=deadline_s)
