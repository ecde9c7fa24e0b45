"""What a public model name means today, for one project."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.protocol import AdapterRef

Subject = Callable[[], str]  # who asks: asked only where it matters, for it takes a while to say


def nobody() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    public_name: str  # as the client wrote it, and as answers repeat it
    base_model: str  # its base's served name; "" where that base is not served
    adapter: AdapterRef | None = None
    adapter_id: str | None = None  # adp_…
    created: int = 0  # unix seconds
    name: str = ""  # without version or prefix: what limits are set for
    owner: str = ""  # project name, or "loratorio" for the base

    @property
    def fingerprint(self) -> str:
        """The ``system_fingerprint`` of answers: which weights produced them."""
        return f"fp_{self.adapter.digest[:16]}" if self.adapter else "fp_base"
