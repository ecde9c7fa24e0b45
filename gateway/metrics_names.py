"""Gives what an engine counts by digest and by opaque tenant the names an operator knows.

``vllm:lora_requests_info`` names adapters as clients do, since schedulers compare it with the
model of a request. Elsewhere the digest stays the label, and two metrics of their own say what
digests and tenants are called, for joins: ``… * on(adapter) group_left(model) …``.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
ADAPTER = re.compile(r'\badapter="([0-9a-f]{64})"')
TENANT = re.compile(r'\btenant="([0-9a-f]{32})"')
ACTIVE = re.compile(r"^vllm:lora_requests_info{.*$", re.MULTILINE)
PREFIX = "loratorio_gateway"
MOST_NAMES = 8  # of one adapter


@dataclass(frozen=True, slots=True)
class Names:
    models: Callable[[str], Sequence[str]]  # of a digest, as clients write them
    project: Callable[[str], tuple[str, str] | None]  # of a tenant: id and name

    def told(self, text: str) -> str:
        """An engine's page with names in it."""
        named = ACTIVE.sub(lambda line: DIGEST.sub(self._listed, line[0]), text)
        return named + self._adapters(text) + self._tenants(text)

    def _listed(self, digest: re.Match[str]) -> str:
        return ",".join(map(_escaped, self.models(digest[0])[:MOST_NAMES])) or digest[0]

    def _adapters(self, text: str) -> str:
        rows = [
            {"adapter": digest, "model": model}
            for digest in sorted(set(ADAPTER.findall(text)))
            for model in self.models(digest)[:1]
        ]
        return _info(f"{PREFIX}_adapter_info", "What clients call an adapter", rows)

    def _tenants(self, text: str) -> str:
        rows = [
            {"tenant": tenant, "project": project[0], "project_name": project[1]}
            for tenant in sorted(set(TENANT.findall(text)))
            if (project := self.project(tenant))
        ]
        return _info(f"{PREFIX}_tenant_info", "Which project a tenant is", rows)


def _info(name: str, help: str, rows: Iterable[Mapping[str, str]]) -> str:
    lines = []
    for row in rows:
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in row.items())
        lines.append(f"{name}{{{labels}}} 1.0")
    return "\n".join([f"# HELP {name} {help}", f"# TYPE {name} gauge", *lines, ""])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
