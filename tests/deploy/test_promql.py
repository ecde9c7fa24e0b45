"""The evaluator itself, on values worked out by hand from Prometheus' definitions."""

import pytest

from tests.deploy.promql import Parser, Series, Storage


def counter(*values: float, name: str = "c", **labels: str) -> Series:
    samples = tuple((60.0 * i, value) for i, value in enumerate(values))
    return Series(name, frozenset(labels.items()), samples)


def value(expression: str, *series: Series, at: float = 600.0) -> list[float]:
    found = Parser(expression).parse()(Storage(series), at)
    assert isinstance(found, dict)
    return list(found.values())


def test_a_rate_is_the_increase_per_second_and_mends_resets():
    steady = counter(*(6.0 * i for i in range(11)))
    assert value("rate(c[5m])", steady) == pytest.approx([0.1])
    reset = counter(*(6.0 * i for i in range(8)), 6, 12, 18)
    assert value("rate(c[5m])", reset) == pytest.approx([0.1])


def test_a_rate_of_one_sample_is_none():
    assert value("rate(c[5m])", counter(1), at=60) == []


def test_sums_keep_what_they_are_told_to():
    series = [counter(1, name="g", a=a, b=b) for a in "xy" for b in "pq"]
    assert value("sum(g)", *series, at=0) == [4]
    assert value("sum by (a) (g)", *series, at=0) == [2, 2]


def test_matchers_are_whole_and_missing_labels_empty():
    series = [counter(1, name="g", status=s) for s in ("500", "1500", "200")]
    assert value('sum(g{status=~"5.."})', *series, at=0) == [1]
    assert value('sum(g{status!~"5..",other=""})', *series, at=0) == [2]


def test_a_quantile_is_interpolated_in_its_bucket():
    series = [
        counter(v, name="b", le=le) for le, v in (("1.0", 50.0), ("2.0", 100.0), ("+Inf", 100.0))
    ]
    assert value("histogram_quantile(0.75, b)", *series, at=0) == [1.5]


def test_a_comparison_keeps_only_what_is_true_and_or_fills_in():
    series = [counter(v, name="g", n=str(v)) for v in (1.0, 2.0, 3.0)]
    assert value("g > 2", *series, at=0) == [3]
    assert value("sum(nothing) or vector(7)", at=0) == [7]
    assert value("sum(g) or vector(7)", *series, at=0) == [6]


def test_what_is_old_is_gone():
    assert value("g", counter(1, name="g"), at=299) == [1]
    assert value("g", counter(1, name="g"), at=300) == []


def test_what_it_does_not_know_it_refuses():
    with pytest.raises(AssertionError):
        Parser("avg(g) > 1").parse()
