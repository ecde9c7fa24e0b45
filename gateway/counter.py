"""A counter, or a gauge, that costs an addition, and no lock: of what one event loop counts.

The exposition is that of the Prometheus library.
"""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class Count:
    """What was counted under some values of the labels: add to ``total``."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Counter(Collector):
    _family: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily

    def __init__(
        self, name: str, about: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._about, self._labels = name, about, labels
        self._counts: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def of(self, *values: str) -> Count:
        """Of these values of the labels, in their order; there must be few."""
        found = self._counts.get(values)
        if found is None:
            found = self._counts[values] = Count()
        return found

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        family = self._family(self._name, self._about, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count.total)
        yield family


class Level(Counter):
    """Of what there is at the moment: counted up and down."""

    _family = GaugeMetricFamily
