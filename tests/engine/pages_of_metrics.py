"""Reads a page of metrics as Prometheus does."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Page:
    text: str

    @property
    def kinds(self) -> dict[str, str]:
        """Metric's name, without a counter's ending → its type."""
        return {family.name: family.type for family in text_string_to_metric_families(self.text)}

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        families = text_string_to_metric_families(self.text)
        return [(s.labels, s.value) for f in families for s in f.samples if s.name == name]

    def value(self, name: str, **labels: str) -> float:
        """Of the one sample that has these labels among its own."""
        found = [v for has, v in self.samples(name) if labels.items() <= has.items()]
        assert len(found) == 1, f"{len(found)} samples of {name} {labels}"
        return found[0]

    def labels(self, name: str) -> dict[str, str]:
        ((labels, _),) = self.samples(name)
        return labels
