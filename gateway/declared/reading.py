"""From nodes to a declaration. Everything here raises DeclarationInvalid."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from gateway.declared.declaration import (
    BILLING,
    LIMITS,
    NANO_PER_DOLLAR,
    Declaration,
    DeclaredBudget,
    DeclaredKey,
    DeclaredOrganisation,
    DeclaredPerson,
    DeclaredPrice,
    DeclaredProject,
    Limits,
)
from gateway.declared.source import Spot
from gateway.identity.models import Role
from gateway.identity.people import checked_email, checked_person
from gateway.limits.models import MOST_NANO, RATES, Exhaust
from gateway.limits.period import DAY, MONTH, zone
from gateway.limits.rules import Rates
from gateway.limits.service import MOST
from gateway.names import checked_name
from gateway.usage.pricing import DEFAULT_TIER, pico_per_token

T = TypeVar("T")
MOST_SUBJECT = 256


def declaration(file: Spot) -> Declaration:
    found = file.fields("plans", "prices", "organisations")
    plans = _named(found.get("plans"), lambda spot: _limits(spot, spot.fields(*LIMITS)))
    organisations = _named(found.get("organisations"), _organisation)
    prices = [_price(spot) for spot in found["prices"].sequence()] if "prices" in found else []
    return Declaration(plans=plans, prices=tuple(prices), organisations=organisations)


def _organisation(spot: Spot) -> DeclaredOrganisation:
    found = spot.fields("plan", "billing", *LIMITS, "people", "admin_keys", "projects")
    plan = found.get("plan")
    billing = found.get("billing")
    if billing is not None and billing.text() not in BILLING:
        raise billing.wrong("postpaid or prepaid")
    return DeclaredOrganisation(
        says_plan=plan is not None,
        plan=None if plan is None or plan.is_null else plan.text(),
        billing=None if billing is None else billing.text(),
        limits=_limits(spot, found),
        people=_people(found.get("people")),
        admin_keys=_named(found.get("admin_keys"), lambda each: _role(each.fields("role"), each)),
        projects=_named(found.get("projects"), _project),
        listed=frozenset(found),
    )


def _project(spot: Spot) -> DeclaredProject:
    found = spot.fields(*LIMITS, "keys", "people", "customers", "tags")
    members = {
        _email(address, each): each.choice(Role, ", ".join(Role))
        for address, each in _mapping(found.get("people")).items()
    }
    return DeclaredProject(
        limits=_limits(spot, found),
        keys=_named(found.get("keys"), _key),
        people=members,
        customers=_subjects(found.get("customers"), LIMITS),
        tags=_subjects(found.get("tags"), ("rates", "models"), tag=True),
        listed=frozenset(found),
    )


def _key(spot: Spot) -> DeclaredKey:
    found = spot.fields(*LIMITS, "expires", "endpoints", "allow_models", "networks")
    expires = found.get("expires")
    return DeclaredKey(
        limits=_limits(spot, found),
        expires_at=None if expires is None or expires.is_null else expires.moment(),
        endpoints=_list(found.get("endpoints"), _path),
        models=_list(found.get("allow_models"), Spot.text),
        networks=_list(found.get("networks"), _network),
    )


def _path(spot: Spot) -> str:
    if not re.fullmatch(r"/[\x21-\x7e]{1,63}", spot.text()):
        raise spot.wrong("must be a path, such as /v1/chat/completions")
    return spot.text()


def _network(spot: Spot) -> str:
    try:
        return str(ipaddress.ip_network(spot.text()))
    except ValueError as error:
        raise spot.wrong(f"must be a range of addresses, such as 10.0.0.0/8 ({error})") from None


def _people(spot: Spot | None) -> Mapping[str, DeclaredPerson]:
    people = {}
    for address, each in _mapping(spot).items():
        found = each.fields("name", "role")
        name = found["name"].text() if "name" in found else address
        with found.get("name", each).named():
            checked_person(name)
        people[_email(address, each)] = DeclaredPerson(name=name, role=_role(found, each))
    return people


def _role(found: Mapping[str, Spot], spot: Spot) -> Role:
    if "role" not in found:
        raise spot.wrong(f"role must be given: one of {', '.join(Role)}")
    return found["role"].choice(Role, ", ".join(Role))


def _email(address: str, spot: Spot) -> str:
    with spot.named():
        return checked_email(address)


def _limits(spot: Spot, found: Mapping[str, Spot]) -> Limits:
    rates = found.get("rates")
    budgets = found.get("budgets")
    models = _mapping(found.get("models"))
    return Limits(
        rates=None if rates is None else _rates(rates),
        budgets=None if budgets is None else _budgets(budgets),
        models={
            name: _limits(each, each.fields("rates", "budgets")) for name, each in models.items()
        },
    )


def _rates(spot: Spot) -> Rates:
    return Rates(
        **{name: each.integer(0, MOST) for name, each in spot.fields(*RATES).items()
           if not each.is_null}
    )  # fmt: skip


def _budgets(spot: Spot) -> tuple[DeclaredBudget, ...]:
    budgets: dict[str, DeclaredBudget] = {}
    for each in spot.sequence():
        found = each.fields("period", "usd", "time_zone", "on_exhaust")
        for name in ("period", "usd"):
            if name not in found:
                raise each.wrong(f"{name} must be given")
        period, time_zone = found["period"].text(), "UTC"
        if period not in (DAY, MONTH):
            raise found["period"].wrong("day or month")
        if period in budgets:
            raise found["period"].wrong(f"there is a budget of the {period} already")
        if "time_zone" in found:
            time_zone = found["time_zone"].text()
            with found["time_zone"].named():
                zone(time_zone)
        end = found.get("on_exhaust")
        budgets[period] = DeclaredBudget(
            period=period,
            nano=_nano(found["usd"]),
            time_zone=time_zone,
            on_exhaust=end.choice(Exhaust, ", ".join(Exhaust)) if end else Exhaust.CUT,
        )
    return tuple(budgets.values())


def _nano(spot: Spot) -> int:
    nano = spot.number() * NANO_PER_DOLLAR
    if nano != nano.to_integral_value() or not 0 <= nano <= MOST_NANO:
        raise spot.wrong(
            f"dollars, from 0 to {MOST_NANO // NANO_PER_DOLLAR}, at most 9 decimal places"
        )
    return int(nano)


def _price(spot: Spot) -> DeclaredPrice:
    meters = ("input", "cached_input", "output")
    found = spot.fields("model", "adapter", "tier", *meters, "from")
    if ("model" in found) == ("adapter" in found):
        raise spot.wrong("give a model (its served name) or an adapter (its id, adp_…)")
    for name in meters:
        if name not in found:
            raise spot.wrong(f"{name} must be given: dollars per million tokens")
    dollars = {name: str(found[name].number()) for name in meters}
    for name, text in dollars.items():
        with found[name].named():
            pico_per_token(text, param=name)
    return DeclaredPrice(
        spot=spot,
        model=found["model"].text() if "model" in found else None,
        adapter=found["adapter"].text() if "adapter" in found else None,
        tier=found["tier"].text() if "tier" in found else DEFAULT_TIER,
        prices=(dollars["input"], dollars["cached_input"], dollars["output"]),
        since=found["from"].moment() if "from" in found else None,
    )


def _subjects(
    spot: Spot | None, offered: tuple[str, ...], *, tag: bool = False
) -> Mapping[str, Limits]:
    """Customers, or tags: names that clients send."""
    found = {}
    for name, each in _mapping(spot).items():
        if not 1 <= len(name) <= MOST_SUBJECT or not name.isprintable():
            raise each.wrong(f"1 to {MOST_SUBJECT} printable characters")
        if tag and "=" not in name:
            raise each.wrong("a tag is name=value")
        found[name] = _limits(each, each.fields(*offered))
    return found


def _named(spot: Spot | None, read: Callable[[Spot], T]) -> Mapping[str, T]:
    found = {}
    for name, each in _mapping(spot).items():
        with each.named():
            checked_name(name, param="name")
        found[name] = read(each)
    return found


def _mapping(spot: Spot | None) -> Mapping[str, Spot]:
    return {} if spot is None else spot.mapping()


def _list(spot: Spot | None, read: Callable[[Spot], str]) -> tuple[str, ...] | None:
    if spot is None or spot.is_null:
        return None
    return tuple(read(each) for each in spot.sequence())
