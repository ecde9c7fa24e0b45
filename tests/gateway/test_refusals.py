"""Refusals are remembered by key and limit, for a quarter of an hour, within a bound."""

from dataclasses import replace
from datetime import timedelta

from gateway.limits import refusals
from gateway.limits.models import Level
from gateway.limits.rules import Rule, Subject
from gateway.limits.store import Kind, Unit
from tests.gateway.quotas import Now, somebody


def rule(limit: int = 4) -> Rule:
    subject = Subject(Level.KEY, "key_1")
    return Rule("org_1", subject, "requests_per_minute", Kind.RATE, Unit.REQUESTS, limit)


def test_one_key_at_one_limit_is_one_line_and_is_forgotten_in_the_end():
    now, who = Now(), somebody()
    known = refusals.Refusals(now)
    known.note(who, rule(), 3.0)
    now.at += timedelta(minutes=5)
    known.note(who, rule(), 7.5)
    known.note(replace(who, key="key_2"), rule(), 1.0)
    first, second = known.of(who.organisation)
    assert (first.principal.key, first.times) == ("key_2", 1)
    assert (second.times, second.wait_s, second.last - second.first) == (
        2,
        7.5,
        timedelta(minutes=5),
    )
    assert known.of("org_of_others") == []
    now.at += timedelta(minutes=16)
    assert known.of(who.organisation) == []
    known.note(who, rule(), 1.0)
    assert known.of(who.organisation)[0].times == 1


def test_however_many_are_refused_the_last_are_remembered(monkeypatch):
    monkeypatch.setattr(refusals, "MOST", 3)
    who, known = somebody(), refusals.Refusals(Now())
    for number in range(9):
        known.note(replace(who, key=f"key_{number}"), rule(), 1.0)
    assert [each.principal.key for each in known.of(who.organisation)] == [
        "key_8",
        "key_7",
        "key_6",
    ]
