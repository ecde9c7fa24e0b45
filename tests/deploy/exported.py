"""Every series that a gateway and an engine can export, also those that nothing was counted in."""

import re

from engine.metrics import EngineMetrics
from gateway.metrics import Metrics

TYPE = re.compile(r"^# TYPE (\S+) (\w+)$", re.MULTILINE)
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def exported_names() -> set[str]:
    pages = EngineMetrics(10).text() + Metrics().text().decode()
    return {
        f"{name}{suffix}"
        for name, kind in TYPE.findall(pages)
        for suffix in SUFFIXES.get(kind, ("",))
    }
