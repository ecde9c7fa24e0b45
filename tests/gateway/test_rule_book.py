"""Customers' names are the clients' to choose: what is kept for each is little, and ends."""

import gc

from gateway.limits.models import Level
from gateway.limits.rules import ANYONE, MOST_KNOWN, Rates, Rule, RuleBook, Subject, Use
from tests.gateway.serving import principal

RATES = Rates(requests_per_minute=10, tokens_per_minute=10, requests_per_day=10)
WHO = principal("acme")
SUBJECTS = (
    Subject(Level.ORGANISATION, WHO.organisation),
    Subject(Level.PROJECT, WHO.project),
    Subject(Level.KEY, WHO.key),
    Subject(Level.PROJECT, WHO.project, "tiny"),
)


def rules_alive() -> int:
    gc.collect()
    return sum(type(each) is Rule for each in gc.get_objects())


def meet(book: RuleBook, customers: range) -> None:
    for number in customers:
        assert book.of(WHO, Use("tiny", f"customer-{number}"))


def test_many_customers_without_limits_of_their_own_share_their_tenants_rules():
    book, before = RuleBook(dict.fromkeys(SUBJECTS, RATES)), rules_alive()
    meet(book, range(1))
    assert rules_alive() - before == 3 * len(SUBJECTS)
    meet(book, range(1000))
    assert rules_alive() - before == 3 * len(SUBJECTS)
    one, other = (book.of(WHO, Use("tiny", name)) for name in ("customer-1", "customer-2"))
    assert all(a is b for a, b in zip(one, other, strict=True))


def test_what_is_kept_of_customers_with_limits_is_bounded():
    everybody = Subject(Level.CUSTOMER, f"{WHO.project}/{ANYONE}")
    book, before = RuleBook({everybody: Rates(requests_per_minute=1)}), rules_alive()
    meet(book, range(MOST_KNOWN))
    most = rules_alive() - before
    assert most == MOST_KNOWN
    meet(book, range(MOST_KNOWN, 3 * MOST_KNOWN))
    assert rules_alive() - before <= most
