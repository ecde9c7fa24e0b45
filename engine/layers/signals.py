"""What the kernels of each site tell each other within a pass; see ``kernels.signals``."""

import torch

from engine.placement import SITES


class Signals:
    """Belongs to the passes of one stream."""

    def __init__(self, layers: int, device: torch.device) -> None:
        counts = torch.zeros((layers, len(SITES), 2), dtype=torch.int32, device=device)
        self._counts = counts
        self._of = [dict(zip(SITES, layer.unbind(0), strict=True)) for layer in counts.unbind(0)]

    def begin(self) -> None:
        """A pass begins: nothing has been said in it yet."""
        self._counts.zero_()

    def of(self, layer: int, site: str) -> torch.Tensor:
        """[2] int32: whether the site's input is there; programs of shrink that have ended."""
        return self._of[layer][site]
