"""Keys, limits and names as they are, in this process: the request path reads no database.

A snapshot is immutable and replaced whole. The epoch row says when it is out of date: every
change of keys, projects or adapters moves it in the same transaction, whoever makes the change.
It is polled (``Settings.epoch_poll_s``), and a Redis message, when there is a Redis, only makes
the look come sooner. While the database is away the last snapshot stays in use.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from engine.protocol import AdapterRef
from gateway.catalog.bases import Bases, ServedBase
from gateway.catalog.catalogue import AdapterEntry, AliasEntry, Catalogue, GrantEntry
from gateway.catalog.models import Adapter
from gateway.catalog.repository import CatalogRepository
from gateway.catalog.target import Subject, Target, nobody
from gateway.db import Database, DatabaseUnavailable, read_epoch
from gateway.errors import ModelNotFound, Unauthenticated
from gateway.identity.directory import KeyDirectory, KeyEntry, tenant_of
from gateway.identity.keys import parse
from gateway.identity.models import ApiKey, KeyKind, Role
from gateway.identity.pepper import Peppers
from gateway.identity.principal import Principal
from gateway.identity.repository import IdentityRepository
from gateway.limits.models import Level
from gateway.limits.repository import LimitRepository
from gateway.limits.rules import Rule, RuleBook, uses_of
from gateway.limits.service import rule_book
from gateway.usage.pricing import BATCH_TIER, PriceBook, Tariff
from gateway.usage.repository import LedgerRepository
from gateway.weights import Weights

log = logging.getLogger(__name__)

PREPAID = "prepaid"
LOOKS_APART_S = 0.05  # for keys that nobody knows
REMEMBERED = timedelta(hours=1)  # how long an adapter's end is; requests take less


@dataclass(frozen=True, slots=True)
class Snapshot:
    epoch: int
    keys: KeyDirectory
    catalogue: Catalogue
    rules: RuleBook
    prices: PriceBook
    ends: Mapping[str, float]  # retired adapters' ids, and when what runs on them ends


class LiveSnapshot:
    """The current snapshot, kept current. Belongs to one event loop.

    live = LiveSnapshot(database, peppers, base_model="smol")
    async with live.following():  # loads it, then refreshes it until the block ends
        principal = live.authenticate(key)
        target = live.resolve(principal, "support@2")
    """

    def __init__(
        self,
        database: Database,
        peppers: Peppers,
        *,
        base_model: str | Bases,
        open_tenant: str | None = None,
        poll_s: float = 0.25,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``open_tenant``: the project that answers for callers with any or no key."""
        self._database = database
        self._peppers = peppers
        known = base_model if isinstance(base_model, Bases) else Bases((ServedBase(base_model),))
        self.bases = known
        self._open_tenant = open_tenant
        self._poll_s = poll_s
        self._clock = clock
        self._created = int(clock())  # of the base, as /v1/models reports it
        self._hint = asyncio.Event()
        self._turn = asyncio.Lock()  # so that no older view replaces a newer one
        self._current: Snapshot | None = None
        self._confirmed_at = 0.0  # monotonic
        self._asked_at = 0.0  # monotonic: when the database was asked last, with success or without

    @property
    def age_s(self) -> float:
        """Seconds since the database last confirmed that the snapshot is up to date."""
        return time.monotonic() - self._confirmed_at

    @property
    def current(self) -> Snapshot:
        assert self._current is not None, "the snapshot is loaded before anything is served"
        return self._current

    def authenticate(self, key: str, *, strictly: bool = False) -> Principal:
        """Raises Unauthenticated: the same for unknown, malformed, expired and revoked keys.

        ``strictly``: the open tenant answers for nobody.
        """
        now = self._clock()
        try:
            return self.current.keys.authenticate(key, now)
        except Unauthenticated:
            if strictly or self._open_tenant is None:
                raise
            return self.current.keys.any_of(self._open_tenant, now)

    async def recognise(self, key: str, *, strictly: bool = False) -> Principal:
        """As ``authenticate``, but a key that is not known may have been made this moment, by
        another process: it is refused only after a look at the database that began later.

        Guessers share these looks, ``LOOKS_APART_S`` apart. While the database is away, what is
        known decides.
        """
        try:
            return self.authenticate(key, strictly=strictly)
        except Unauthenticated:
            if parse(key) is None:
                raise
            await self._look_after(time.monotonic())
            return self.authenticate(key, strictly=strictly)

    async def _look_after(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, self._asked_at + LOOKS_APART_S - moment))
        async with self._turn:
            if self._asked_at <= moment:
                with contextlib.suppress(DatabaseUnavailable):  # whoever follows says so
                    await self._refreshed()

    def holder(self, key: str) -> Principal:
        """Whose a key is, by its id. Raises Unauthenticated where it is valid no more."""
        return self.current.keys.holder(key, self._clock())

    def resolve(self, principal: Principal, name: str, subject: Subject = nobody) -> Target:
        """Raises ModelNotFound: the same for another project's name and for no name at all."""
        target = self.current.catalogue.resolve(principal.project, name, subject)
        if principal.models is not None and target.name not in principal.models:
            raise ModelNotFound(name)
        return target

    def rules(self) -> RuleBook:
        return self.current.rules

    def limits_of(self, organisation: str) -> list[Rule]:
        """Every limit that holds for somebody in it, the organisation's own first."""
        found: dict[str, Rule] = {}
        book = self.current.rules
        subjects = {*book.rates, *book.allowances}
        for who in self.current.keys.of_organisation(organisation):
            for use in uses_of(who, subjects):
                for rule in book.of(who, use):
                    found.setdefault(rule.name, rule)
        order = list(Level)
        return sorted(found.values(), key=lambda each: order.index(each.subject.level))

    def tariff(self, target: Target, at: datetime) -> Tariff | None:
        """None: the model has no price."""
        return self.current.prices.at(target.base_model, target.adapter_id, at)

    def batch_tariff(self, target: Target, at: datetime) -> Tariff | None:
        """The same for a line of a batch; where that tier has no price, the default one's."""
        return self.current.prices.at(target.base_model, target.adapter_id, at, BATCH_TIER)

    def models(self, principal: Principal) -> list[Target]:
        """The base, then the principal's own adapters."""
        return [
            target
            for target in self.current.catalogue.models(principal.project)
            if principal.models is None or target.name in principal.models
        ]

    def names_of(self, digest: str) -> Sequence[str]:
        """What clients call an adapter, shortest first."""
        return self.current.catalogue.names_of(digest)

    def project_of(self, tenant: str) -> tuple[str, str] | None:
        """Id and name."""
        return self.current.keys.project_of(tenant)

    @property
    def pinned(self) -> frozenset[tuple[str, AdapterRef]]:
        """Bases' names, and adapters of them that tenants want kept close to the engines."""
        return self.current.catalogue.pinned

    @property
    def digests(self) -> frozenset[str]:
        """Of every adapter that may be asked for."""
        return self.current.catalogue.digests

    @property
    def ends(self) -> Mapping[str, float]:
        """Retired adapters' ids, and when what runs on them ends, in unix seconds."""
        return self.current.ends

    def hint(self) -> None:
        """Something may have changed: look now, not at the next poll."""
        self._hint.set()

    async def refresh(self) -> None:
        """Load a new snapshot if the epoch has moved. Raises DatabaseUnavailable."""
        async with self._turn:
            await self._refreshed()

    async def _refreshed(self) -> None:
        self._asked_at = asked_at = time.monotonic()
        if self._current is None or await self._database.epoch() != self._current.epoch:
            async with self._database.reading() as session:
                self._current = await self._load(session)
        self._confirmed_at = asked_at

    async def look(self) -> None:
        """Refresh, or leave it to the next poll when the database does not answer."""
        try:
            await self.refresh()
        except DatabaseUnavailable as error:
            log.info("a change is seen at the next poll: %s", error)

    async def follow(self) -> None:
        """Refresh for ever. Failures are logged once and the last snapshot stays in use."""
        reachable = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._hint.wait()
            self._hint.clear()
            try:
                await self.refresh()
            except DatabaseUnavailable as error:
                if reachable:
                    log.warning("keys and adapters are as last known: %s", error)
                reachable = False
            else:
                if not reachable:
                    log.info("keys and adapters are up to date again")
                reachable = True

    async def _load(self, session: AsyncSession) -> Snapshot:
        epoch = await read_epoch(session)  # first: what is read after it is at least as new
        people = await _people(IdentityRepository(session))
        payers = await IdentityRepository(session).organisations()
        weights = Weights(payers, await LimitRepository(session, None).plans())
        keys = [
            _key_entry(row, people, weights.of(row))
            for row in await IdentityRepository(session).live_keys()
            if row.user_id is None or row.user_id in people
        ]
        owners = {p.id: p.name for p in await IdentityRepository(session).projects()}
        adapters = [
            AdapterEntry(
                id=row.id,
                project=row.project_id,
                project_name=owners[row.project_id],
                name=row.name,
                version=row.version,
                adapter=_adapter_ref(row),
                created=int(row.created_at.timestamp()),
                pinned=row.pinned,
                base=row.base_fingerprint,
            )
            for row in await CatalogRepository(session).ready()
            if row.project_id in owners
        ]
        catalog = CatalogRepository(session)
        aliases = [
            AliasEntry(
                project=row.project_id,
                name=row.name,
                adapter_id=row.adapter_id,
                canary_id=row.canary_id,
                canary_percent=row.canary_percent,
            )
            for row in await catalog.aliases()
        ]
        grants = [
            GrantEntry(owner=row.project_id, name=row.name, grantee=row.grantee_id)
            for row in await catalog.grants()
        ]
        ledger = LedgerRepository(session)
        rules = await rules_now(session)
        return Snapshot(
            epoch,
            KeyDirectory(keys, self._peppers),
            Catalogue(self.bases, self._created, adapters, aliases, grants),
            rules,
            await ledger.price_book(),
            {
                row.id: row.ends_at.timestamp()
                for row in await catalog.ending(datetime.now(UTC) - REMEMBERED)
                if row.ends_at is not None
            },
        )


async def rules_now(session: AsyncSession) -> RuleBook:
    """Every limit that holds."""
    identity = IdentityRepository(session)
    payers = await identity.organisations()
    return await rule_book(
        session,
        plans={row.id: row.plan_id for row in payers if row.plan_id},
        prepaid=frozenset(row.id for row in payers if row.billing == PREPAID),
        now=datetime.now(UTC),
        version=await LedgerRepository(session).corrections(),
        replaced=await identity.replaced(),
    )


def _adapter_ref(row: Adapter) -> AdapterRef:
    invocation = msgspec.json.decode(row.invocation, type=tuple[int, ...]) if row.invocation else ()
    return AdapterRef(row.digest, row.rank, invocation)


def _scope(listed: list[str] | None) -> tuple[str, ...] | None:
    return None if listed is None else tuple(listed)


@dataclass(frozen=True, slots=True)
class Person:
    role: str
    projects: tuple[tuple[str, str], ...]  # (project, role)


async def _people(rows: IdentityRepository) -> dict[str, Person]:
    projects: dict[str, list[tuple[str, str]]] = {}
    for row in await rows.memberships():
        projects.setdefault(row.user_id, []).append((row.project_id, row.role))
    return {
        row.id: Person(row.role, tuple(projects.get(row.id, ()))) for row in await rows.people()
    }


def _key_entry(row: ApiKey, people: Mapping[str, Person], weight: int) -> KeyEntry:
    project = row.project
    person = people.get(row.user_id or "")
    admin = row.kind == KeyKind.ADMIN
    principal = Principal(
        organisation=row.organisation_id,
        project=project.id if project else "",
        project_name=project.name if project else "",
        key=row.id,
        tenant=tenant_of(project.id) if project else "",
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        endpoints=_scope(row.endpoints),
        models=_scope(row.models),
        networks=_scope(row.networks),
        weight=weight,
        strict=bool(project and project.strict),
        text_days=(project.text_days or 0) if project else 0,
        admin=admin,
        role=(row.role or (person.role if person else Role.OWNER)) if admin else None,
        project_roles=person.projects if person and admin else (),
    )
    return KeyEntry(
        principal=principal,
        hash=row.hash,
        pepper_version=row.pepper_version,
        expires_at=row.expires_at.timestamp() if row.expires_at else None,
    )
