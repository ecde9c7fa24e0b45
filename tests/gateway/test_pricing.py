"""Money is exact: integers, disjoint meters, the price in force when a request started."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.usage.event import event_of
from gateway.usage.pricing import (
    PriceBook,
    Tariff,
    Tokens,
    billable,
    cost,
    dollars,
    pico_per_token,
)
from gateway.usage.record import Outcome
from tests.gateway.test_ledger import finished, started

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def tariff(number: int = 1, *, since: datetime = NOON, price: int = 1000) -> Tariff:
    return Tariff(
        id=f"prc_{number}", effective_from=since, input=price, cached_input=price, output=price
    )


@pytest.mark.parametrize(("tokens", "nano"), [(0, 0), (1, 0), (2, 1), (3, 1), (1_000_000, 333_000)])
def test_costs_round_half_up_once_per_event(tokens, nano):
    rates = Tariff(id="prc_1", effective_from=NOON, input=333, cached_input=0, output=0)
    assert cost(rates, Tokens(input=tokens, cached_input=0, output=0)).total == nano


def test_half_a_nano_rounds_up():
    assert cost(tariff(price=500), Tokens(input=1, cached_input=0, output=0)).total == 1


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**12))
def test_large_costs_are_exact(prompt, output, price):
    tokens = Tokens(input=prompt, cached_input=0, output=output)
    assert abs(cost(tariff(price=price), tokens).total * 1000 - (prompt + output) * price) <= 500


@given(*(st.integers(0, 10**6) for _ in range(6)))
def test_the_meters_add_up_to_the_cost_rounded_once(a, b, c, x, y, z):
    rates = Tariff(id="prc_1", effective_from=NOON, input=x, cached_input=y, output=z)
    charge = cost(rates, Tokens(input=a, cached_input=b, output=c))
    assert charge.total == (a * x + b * y + c * z + 500) // 1000
    for share, pico in zip(
        (charge.input, charge.cached_input, charge.output), (a * x, b * y, c * z), strict=True
    ):
        assert share >= 0
        assert abs(share * 1000 - pico) <= 1000


def test_a_tier_without_its_own_price_costs_what_the_default_does():
    flex = Tariff(id="prc_2", effective_from=NOON, input=1, cached_input=1, output=1, tier="flex")
    book = PriceBook([("smol", tariff(1)), ("smol", flex)])
    assert book.at("smol", None, NOON, "flex").id == "prc_2"
    assert book.at("smol", None, NOON, "scale").id == "prc_1"
    assert book.at("smol", None, NOON).id == "prc_1"


def test_of_two_prices_from_the_same_time_the_later_made_holds():
    book = PriceBook([("smol", tariff(2)), ("smol", tariff(1))])
    assert book.at("smol", None, NOON).id == "prc_2"


@given(st.integers(0, 10**6), st.data())
def test_every_prompt_token_is_on_exactly_one_meter(prompt, data):
    cached = data.draw(st.integers(0, prompt))
    tokens = billable(Outcome.COMPLETED, prompt=prompt, cached=cached, completion=3)
    assert tokens.input + tokens.cached_input == prompt


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ENGINE_LOST])
def test_a_failure_that_delivered_nothing_is_free(outcome):
    nothing = billable(outcome, prompt=50, cached=0, completion=0)
    some = billable(outcome, prompt=50, cached=0, completion=1)
    assert (nothing.input, some.input) == (0, 50)


def test_a_client_that_left_before_the_first_token_pays_for_its_prompt():
    assert billable(Outcome.CANCELLED, prompt=50, cached=0, completion=0).input == 50


def test_the_price_in_force_at_the_start_counts():
    book = PriceBook(
        [("smol", tariff(2, since=NOON + timedelta(hours=1))), ("smol", tariff(1, since=NOON))]
    )
    assert book.at("smol", None, NOON - timedelta(microseconds=1)) is None
    assert book.at("smol", None, NOON).id == "prc_1"
    assert book.at("smol", None, NOON + timedelta(hours=1)).id == "prc_2"


def test_the_price_by_which_a_request_was_admitted_is_what_it_costs():
    """A dearer one was set a moment before, and its gateway had not heard of it."""
    cheap, dear = tariff(1, price=1000), tariff(2, since=NOON + timedelta(minutes=1), price=9000)
    book = PriceBook([("smol", cheap), ("smol", dear)])
    at_ns = int((NOON + timedelta(minutes=2)).timestamp()) * 10**9
    for named, price in (("prc_1", 1), ("prc_2", 9), ("", 9), ("prc_gone", 9)):
        event = event_of(started("req_1", at_ns=at_ns, price=named), finished("req_1"), book)
        assert (event.price_id, event.cost_nano) == (f"prc_{1 if price == 1 else 2}", 17 * price)


def test_an_adapters_own_price_goes_before_its_bases():
    later = NOON + timedelta(days=1)
    book = PriceBook([("smol", tariff(1)), ("adp_1", tariff(2, since=later))])
    assert book.at("smol", "adp_1", NOON).id == "prc_1"
    assert book.at("smol", "adp_1", later).id == "prc_2"
    assert book.at("smol", "adp_2", later).id == "prc_1"
    assert book.at("other", None, later) is None


@pytest.mark.parametrize(
    ("text", "pico"), [("0.15", 150_000), ("2", 2_000_000), ("0", 0), ("0.000001", 1)]
)
def test_prices_are_read_exactly(text, pico):
    assert pico_per_token(text, param="input") == pico


@pytest.mark.parametrize(
    "text", ["", "-1", "1e400", "9e999999", "NaN", "Infinity", "0.0000001", "5 dollars"]
)
def test_prices_that_cannot_be_kept_exactly_are_refused(text):
    with pytest.raises(InvalidRequest):
        pico_per_token(text, param="input")


@pytest.mark.parametrize(("nano", "text"), [(0, "0"), (1, "0.000000001"), (10**10, "10")])
def test_costs_are_shown_exactly(nano, text):
    assert dollars(nano) == text
