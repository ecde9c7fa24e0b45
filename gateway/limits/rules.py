"""Which limits hold for a request: those of its organisation, project, key, customer and tags.

Immutable; a change makes another book. What is not in it is not limited. An organisation's own
quota goes before its plan's, field by field; a customer without limits of its own has those of
the customer ``*`` of its project, if there are such. A key that took another's place shares its
counters: a rotation must not double what may be used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from urllib.parse import quote, unquote

import msgspec

from gateway import redis as names
from gateway.identity.principal import Principal
from gateway.limits.models import Level
from gateway.limits.period import DAY, Period, period_at
from gateway.limits.store import Ask, Kind, Unit

ANYONE = "*"
MOST_KNOWN = 4_000  # callers and uses whose rules are kept
EVER, NEVER = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))
SHAPES: dict[str, tuple[Kind, Unit, str | None]] = {
    "requests_per_minute": (Kind.RATE, Unit.REQUESTS, None),
    "requests_per_day": (Kind.COUNT, Unit.REQUESTS, DAY),
    "tokens_per_minute": (Kind.RATE, Unit.TOKENS, None),
    "tokens_per_day": (Kind.COUNT, Unit.TOKENS, DAY),
    "concurrency": (Kind.SLOTS, Unit.CONCURRENCY, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """None: not limited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None

    def over(self, other: "Rates") -> "Rates":
        """These, and the other's where these say nothing."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(other, **{name: value for name, value in own.items() if value is not None})


NO_RATES = Rates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Money for a calendar period; or, of credits, altogether."""

    period: str | None  # "day" or "month"; None: credits
    time_zone: str = "UTC"
    nano: int
    soft: bool = False
    begun: int = 0  # when it last came to hold: what was counted before has gaps
    since: datetime | None = None  # of credits: when the first was granted
    expiring: tuple["Expiring", ...] = ()


@dataclass(frozen=True, slots=True)
class Expiring:
    """A credit, in ``Allowance.nano``, that nobody has worked out the rest of."""

    at: datetime
    nano: int


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose limits, and for which model; "" is all models."""

    level: Level
    id: str
    model: str = ""


class Use(msgspec.Struct, frozen=True):
    """What a request is for, as far as limits ask."""

    model: str = ""  # public name; "" where it is not known yet
    customer: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One limit of one subject."""

    organisation: str
    subject: Subject
    what: str  # tells the limits of a subject apart
    kind: Kind
    unit: Unit
    limit: int
    _: KW_ONLY
    period: str | None = None
    time_zone: str = "UTC"
    soft: bool = False
    since: datetime | None = None  # of credits
    expiring: tuple[Expiring, ...] = ()
    version: int = 0  # of money: older counters are read from the ledger again
    keys: tuple[str, ...] = ()  # of a key: all that have its counters

    @cached_property
    def name(self) -> str:
        """The counter's, but for the period."""
        subject = self.subject
        path = (subject.level, quote(subject.id, safe=""), quote(subject.model, safe=""), self.what)
        return names.key(self.organisation, *map(str, path))

    @property
    def shown(self) -> str:
        """For people: "project prj_1 on support"."""
        subject = self.subject
        return f"{subject.level} {subject.id}" + (f" on {subject.model}" if subject.model else "")

    def ask(self, cost: int, now: datetime, *, least: int = 0) -> Ask:
        """Most requests ask the same of a limit as the last one did, in the same period."""
        last = self.__dict__.get("_last")
        if last is not None and last[1] <= now < last[2]:
            known: Ask = last[0]
            if known.cost == cost and known.least == least:
                return known
            return Ask(known.key, known.kind, known.unit, known.limit, cost, least,
                       known.ends_ms, known.soft, known.version)  # fmt: skip
        key, ends_ms, start, end = self.name, 0, EVER, NEVER
        if (period := self.period_at(now)) is not None:
            key, ends_ms = f"{self.name}:{period.id}", period.ends_ms
            start, end = period.start, period.end
        limit = self.limit
        if self.expiring:
            limit -= sum(each.nano for each in self.expiring if each.at <= now)
        found = Ask(key, self.kind, self.unit, limit, cost, least, ends_ms, self.soft, self.version)
        if not self.expiring:
            self.__dict__["_last"] = found, start, end
        return found

    def is_expiring(self, now: datetime) -> bool:
        """A credit has expired, and what was left of it is not known yet."""
        return bool(self.expiring) and any(each.at <= now for each in self.expiring)

    def period_at(self, now: datetime) -> Period | None:
        return period_at(now, self.period, self.time_zone) if self.period else None

    @property
    def words(self) -> str:
        """For example "requests per minute"."""
        per = "minute" if self.kind is Kind.RATE else self.period
        return f"{self.unit} per {per}" if per else str(self.unit)


@dataclass(frozen=True)
class RuleBook:
    rates: dict[Subject, Rates] = field(default_factory=dict)
    allowances: dict[Subject, tuple[Allowance, ...]] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)  # organisation -> plan
    version: int = 0  # of what was charged: moves when that was corrected
    replaced: Mapping[str, str] = field(default_factory=dict)  # key -> the key whose place it took
    _known: dict[tuple[Principal, Use], tuple[Rule, ...]] = field(default_factory=dict, init=False)
    _shared: dict[tuple[Principal, Subject], tuple[Rule, ...]] = field(
        default_factory=dict, init=False
    )

    def of(self, who: Principal, use: Use) -> tuple[Rule, ...]:
        """All that hold, the organisation's first."""
        known = self._known.get((who, use))
        if known is None:
            known = tuple(self._rules(who, use))
            if len(self._known) >= MOST_KNOWN:  # customers' names are the clients' to choose
                self._known.clear()
            self._known[who, use] = known
        return known

    def credit_of(self, organisation: str) -> Allowance | None:
        """The credits of a prepaid organisation together."""
        found = self.allowances.get(Subject(Level.ORGANISATION, organisation), ())
        return next((money for money in found if money.period is None), None)

    def credit_rule(self, organisation: str) -> Rule | None:
        subject, credit = Subject(Level.ORGANISATION, organisation), self.credit_of(organisation)
        rules = _rules_of(organisation, subject, NO_RATES, (credit,) if credit else ())
        return next((replace(rule, version=self.version) for rule in rules), None)

    def _rules(self, who: Principal, use: Use) -> Iterable[Rule]:
        models = ("", use.model) if use.model else ("",)
        for level, subject in (
            (Level.ORGANISATION, who.organisation),
            (Level.PROJECT, who.project),
            (Level.KEY, self._first(who.key)),
        ):
            for model in models:
                yield from self._all_share(who, Subject(level, subject, model))
        named = [(Level.CUSTOMER, f"{who.project}/{use.customer}")] if use.customer else []
        named += [(Level.TAG, f"{who.project}/{tag}") for tag in use.tags]
        for level, subject in named:
            for model in models:
                yield from self._of_subject(who, Subject(level, subject, model))

    def _all_share(self, who: Principal, subject: Subject) -> tuple[Rule, ...]:
        """Made once, not for each of many customers."""
        found = self._shared.get((who, subject))
        if found is None:
            if len(self._shared) >= MOST_KNOWN:
                self._shared.clear()
            found = self._shared[who, subject] = tuple(self._of_subject(who, subject))
        return found

    def _of_subject(self, who: Principal, subject: Subject) -> Iterable[Rule]:
        rates, allowances = NO_RATES, tuple[Allowance, ...]()
        for other in self._sources(who, subject):
            more, money = self._found(other)
            rates, allowances = rates.over(more), allowances or money
        if subject.level is Level.KEY and not subject.model:
            rates = rates.over(
                Rates(
                    requests_per_minute=who.requests_per_minute,
                    tokens_per_minute=who.tokens_per_minute,
                )
            )
        for rule in _rules_of(who.organisation, subject, rates, allowances):
            if rule.kind is not Kind.MONEY:
                yield rule
            else:
                keys = self.line(subject.id) if subject.level is Level.KEY else ()
                yield replace(rule, version=rule.version + self.version, keys=keys)

    def holds(self, key: str, version: int) -> bool:
        """Whether a counter of money, by its name, is of a budget that holds now, and has held
        ever since it counts. Others miss what was spent meanwhile, and nobody reads them."""
        rule, _ = rule_of(key)
        for source in self._counted_by(rule):
            for money in self.allowances.get(source, ()):
                if (money.period, money.time_zone) == (rule.period, rule.time_zone):
                    return version >= money.begun + self.version
        return False

    def _counted_by(self, rule: Rule) -> Iterable[Subject]:
        """Whose budgets have this rule's counter."""
        subject = rule.subject
        for name in self.line(subject.id) or (subject.id,):
            yield replace(subject, id=name)
        if subject.level is Level.ORGANISATION and (plan := self.plans.get(subject.id)):
            yield Subject(Level.PLAN, plan, subject.model)
        if subject.level is Level.CUSTOMER:
            project = subject.id.partition("/")[0]
            yield Subject(Level.CUSTOMER, f"{project}/{ANYONE}", subject.model)

    def _first(self, key: str) -> str:
        """Of its line: the one that was rotated first."""
        while (older := self.replaced.get(key)) is not None:
            key = older
        return key

    def line(self, key: str) -> tuple[str, ...]:
        """All that share the counters of a key that was never in another's place."""
        return self._lines.get(key, ())

    @cached_property
    def _lines(self) -> dict[str, tuple[str, ...]]:
        """First keys -> all that came after them, themselves included."""
        lines: dict[str, list[str]] = {}
        for key in self.replaced:
            first = self._first(key)
            lines.setdefault(first, [first]).append(key)
        return {first: tuple(keys) for first, keys in lines.items()}

    def _found(self, subject: Subject) -> tuple[Rates, tuple[Allowance, ...]]:
        return self.rates.get(subject, NO_RATES), self.allowances.get(subject, ())

    def _sources(self, who: Principal, subject: Subject) -> Iterable[Subject]:
        """Where its limits are looked for: what the first has not, the next may have."""
        if subject.level is Level.KEY:
            key: str | None = who.key
            while key is not None:
                yield Subject(Level.KEY, key, subject.model)
                key = self.replaced.get(key)
            return
        yield subject
        if subject.level is Level.ORGANISATION and (plan := self.plans.get(who.organisation)):
            yield Subject(Level.PLAN, plan, subject.model)
        if subject.level is Level.CUSTOMER:
            yield Subject(Level.CUSTOMER, f"{who.project}/{ANYONE}", subject.model)


def uses_of(who: Principal, subjects: Iterable[Subject]) -> Iterable[Use]:
    """Those that meet every limit there is for this key: of models, customers and tags."""
    yield Use()
    mine, within = (who.organisation, who.project, who.key), f"{who.project}/"
    for subject in subjects:
        if subject.level in (Level.CUSTOMER, Level.TAG):
            if not subject.id.startswith(within):
                continue
            name = subject.id.removeprefix(within)
            is_tag = subject.level is Level.TAG
            yield Use(subject.model, "" if is_tag else name, (name,) if is_tag else ())
        elif subject.model and (subject.id in mine or subject.level is Level.PLAN):
            yield Use(subject.model)


def rule_of(name: str) -> tuple[Rule, str]:
    """The budget whose counter this is, as far as its name says, and the period's id."""
    _, organisation, level, subject, model, what, *period = name.split(":")
    _, kind, time_zone = unquote(what).split("-", 2)
    rule = Rule(
        organisation.strip("{}"),
        Subject(Level(level), unquote(subject), unquote(model)),
        what,
        Kind.MONEY,
        Unit.MONEY,
        0,
        period=kind if period else None,
        time_zone=time_zone,
    )
    return rule, period[0] if period else ""


def _rules_of(
    organisation: str, subject: Subject, rates: Rates, allowances: Sequence[Allowance]
) -> Iterable[Rule]:
    for name, (kind, unit, period) in SHAPES.items():
        if (limit := getattr(rates, name)) is not None:
            yield Rule(organisation, subject, name, kind, unit, limit, period=period)
    for money in allowances:
        yield Rule(
            organisation,
            subject,
            f"money-{money.period or 'credit'}-{quote(money.time_zone, safe='')}",
            Kind.MONEY,
            Unit.MONEY,
            money.nano,
            period=money.period,
            time_zone=money.time_zone,
            soft=money.soft,
            since=money.since,
            version=money.begun,
            expiring=money.expiring,
        )
