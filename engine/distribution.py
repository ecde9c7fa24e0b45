"""A histogram that takes many equal observations at once.

A pass brings a token to each of hundreds of sequences, most of which waited equally long for it:
one addition counts them all. It can be shown under several names.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Distribution(Collector):
    """Written by one thread, read by any."""

    def __init__(
        self, names: Mapping[str, str], buckets: Sequence[float], labels: Mapping[str, str]
    ) -> None:
        """``names``: what each name's help text is."""
        self._names, self._labels, self._bounds = dict(names), dict(labels), tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterator[Metric]:
        counts, total, buckets = list(self._counts), 0, list[tuple[str, float]]()
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        for name, help in self._names.items():
            family = HistogramMetricFamily(name, help, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), buckets, self._sum)
            yield family
