"""The live view adds up what the metrics page says, by the names that people know."""

import io

import pytest
from rich.console import Console

from engine.metrics import EngineMetrics
from engine.observer import Tier
from engine.share_metrics import AdapterStanding, Standing, TenantStanding
from gateway.cli.scrape import Between, Reading, page_of
from gateway.cli.top import view
from gateway.metrics import Metrics
from gateway.metrics_names import Names

DIGEST, TENANT = "ab" * 32, "cd" * 16


def page(answers: int, tokens: int) -> str:
    """As a gateway's page is made."""
    gateway, engine = Metrics(), EngineMetrics(10)
    for _ in range(answers):
        gateway.count_answer("/v1/chat/completions", 200)
    gateway.engines_ready.set(1)
    engine.shares.found(TENANT, prompt=tokens, cached=0)
    engine.shares.stand(
        Standing(
            {TENANT: TenantStanding(running=3, waiting=2, pages=7, service=0.0)},
            {DIGEST: AdapterStanding(tier=Tier.DEVICE, pages=4, running=3)},
        )
    )
    names = Names(lambda digest: ["support"], lambda tenant: ("prj_1", "[red]acme"))
    return gateway.text().decode() + names.told(engine.text())


@pytest.fixture
def shown() -> Between:
    return Between(Reading.of(page(10, 100), 0.0), Reading.of(page(30, 500), 2.0))


def drawn(shown: Between) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(view(shown, 5))
    return console.file.getvalue()


def test_rates_are_what_lies_between_two_readings(shown):
    assert shown.rate("loratorio_gateway_answers_total") == 10
    rates = shown.rates("loratorio_engine_tenant_prompt_tokens_total", "tenant", kind="all")
    assert rates == {TENANT: 200}


@pytest.mark.parametrize(
    "given",
    ["127.0.0.1:8001", "http://127.0.0.1:8001", "http://127.0.0.1:8001/metrics",
     "http://127.0.0.1:8001/"],
)  # fmt: skip
def test_the_place_may_be_given_as_serve_prints_it(given: str):
    assert page_of(given, "/metrics") == "http://127.0.0.1:8001/metrics"
    assert page_of(given, "/counters") == "http://127.0.0.1:8001/counters"
    assert page_of("https://gw:1/metrics", "/counters") == "https://gw:1/counters"


def test_a_counter_that_fell_began_anew():
    restarted = Between(Reading.of(page(30, 0), 0.0), Reading.of(page(10, 0), 2.0))
    assert restarted.rate("loratorio_gateway_answers_total") == 5


def test_tenants_and_adapters_are_shown_by_name_and_names_are_no_markup(shown):
    text = drawn(shown)
    tenant = next(line for line in text.splitlines() if "[red]acme" in line)
    assert tenant.split() == ["[red]acme", "3", "2", "7", "200", "0.00"]
    adapter = next(line for line in text.splitlines() if "support" in line)
    assert adapter.split()[:4] == ["support", "device", "3", "4"]
    assert "1 engines ready" in text
    assert "10.0 answers/s" in text


def test_books_that_differ_stand_above_all(shown):
    assert "BOOKS DIFFER" not in drawn(shown)
    text = page(1, 1).replace(
        "loratorio_gateway_ledger_differences 0.0", "loratorio_gateway_ledger_differences 2.0"
    )
    assert "BOOKS DIFFER" in drawn(Between(shown.now, Reading.of(text, 4.0)))
