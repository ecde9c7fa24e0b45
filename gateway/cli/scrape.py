"""Two readings of a metrics page, and what lies between them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import GatewayUnreachable

SECONDS = 5.0

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """``at``: seconds of any one clock."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, at: float) -> "Reading":
        found: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
        return cls(at, found)

    def sum(self, name: str, **labels: str) -> float:
        return sum(self._values(name, labels))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Added up by the values of one label."""
        found: defaultdict[str, float] = defaultdict(float)
        for key, value in self.samples.get(name, {}).items():
            has = dict(key)
            if label in has and has.items() >= labels.items():
                found[has[label]] += value
        return dict(found)

    def names(self, name: str, key: str, value: str) -> dict[str, str]:
        """One label by another, of a metric that says what things are called."""
        pairs = (dict(labels) for labels in self.samples.get(name, {}))
        return {each[key]: each[value] for each in pairs}

    def _values(self, name: str, labels: Mapping[str, str]) -> Iterable[float]:
        for key, value in self.samples.get(name, {}).items():
            if dict(key).items() >= labels.items():
                yield value


@dataclass(frozen=True, slots=True)
class Between:
    """Rates per second; a counter that fell began anew."""

    before: Reading
    now: Reading

    def rate(self, name: str, **labels: str) -> float:
        return self._per_second(self.now.sum(name, **labels), self.before.sum(name, **labels))

    def rates(self, name: str, label: str, **labels: str) -> dict[str, float]:
        before = self.before.by(name, label, **labels)
        return {
            key: self._per_second(value, before.get(key, 0.0))
            for key, value in self.now.by(name, label, **labels).items()
        }

    def mean(self, name: str) -> float | None:
        """Of a histogram's observations meanwhile."""
        count = self.rate(f"{name}_count")
        return self.rate(f"{name}_sum") / count if count else None

    def _per_second(self, now: float, before: float) -> float:
        seconds = self.now.at - self.before.at
        return max(now - before if now >= before else now, 0.0) / seconds if seconds > 0 else 0.0


def page_of(given: str, path: str) -> str:
    """A page's URL. ``given``: HOST:PORT, or a URL as ``serve`` prints that of its metrics."""
    address = given if "://" in given else f"http://{given}"
    return address.rstrip("/").removesuffix("/metrics") + path


def scrape(url: str, at: float) -> Reading:
    """Raises GatewayUnreachable."""
    try:
        answer = httpx2.get(url, timeout=SECONDS, trust_env=False)
        answer.raise_for_status()
        return Reading.of(answer.text, at)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise GatewayUnreachable(f"{url}: no metrics there ({error})") from error
