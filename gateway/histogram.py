"""A histogram that costs a token next to nothing: two additions, and no lock.

Observations of one event loop; the exposition is that of the Prometheus library.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """What was observed under one value of the label."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # up to each bound, and beyond the last
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times


class Histogram(Collector):
    def __init__(
        self, name: str, about: str, label: str, bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:  # fmt: skip
        self._name, self._about, self._label = name, about, label
        self._bounds = bounds
        self._series: dict[str, Series] = {}
        registry.register(self)

    def of(self, value: str) -> Series:
        """Of one value of the label; there must be few."""
        found = self._series.get(value)
        if found is None:
            found = self._series[value] = Series(self._bounds)
        return found

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._about, labels=[self._label])
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for value, series in self._series.items():
            buckets = list(zip(names, map(float, accumulate(series.counts)), strict=True))
            family.add_metric([value], buckets, series.total)
        yield family
