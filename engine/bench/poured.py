"""Host memory with room for so many random adapters, each made in a moment.

One adapter of a rank is made and laid out; the others of that rank have its layout and its values
with other signs. A thousand take seconds instead of minutes, and memory for those alone that are
wanted next: the least recent gives its place away.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import torch

from engine.adapter_layout import BITS, LaidOut


class PouredHost:
    """A ``HostCache``. Digests are ``made-RANK-NUMBER``."""

    def __init__(self, lay_out: Callable[[str], LaidOut], room: int) -> None:
        self._lay_out, self._room = lay_out, room
        self._molds: dict[str, tuple[LaidOut, torch.Tensor]] = {}  # by rank; and on the device
        self._poured: OrderedDict[str, LaidOut] = OrderedDict()  # least recent first
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def request(self, digest: str) -> None:
        if digest in self._poured:
            self._poured.move_to_end(digest)
            return
        mold, values = self._mold(digest.split("-")[1])
        self._poured[digest] = self._pour(digest, mold, values)

    def poll(self, digest: str) -> LaidOut | Exception | None:
        return self._poured.get(digest)

    def holds(self, digest: str) -> bool:
        return digest in self._poured

    def drop(self, digest: str) -> None:
        self._poured.pop(digest, None)

    def _mold(self, rank: str) -> tuple[LaidOut, torch.Tensor]:
        if rank not in self._molds:
            laid = self._lay_out(f"made-{rank}-0")
            self._molds[rank] = laid, laid.host.to(self._device)
        return self._molds[rank]

    def _pour(self, digest: str, mold: LaidOut, values: torch.Tensor) -> LaidOut:
        host = self._place(mold)
        draw = torch.Generator(device=self._device).manual_seed(int(digest.split("-")[2]))
        signs = torch.randint(
            0, 2, values.shape, generator=draw, device=self._device, dtype=torch.int8
        )
        bits = BITS[values.itemsize]  # of codes, the signs of some
        flipped = signs.to(bits) << 8 * values.itemsize - 1
        host.view(bits).copy_(values.view(bits) ^ flipped)
        return replace(mold, digest=digest, host=host)

    def _place(self, mold: LaidOut) -> torch.Tensor:
        """That of the least recent, if it fits and there is no room for more."""
        while len(self._poured) >= self._room:
            old = self._poured.popitem(last=False)[1].host
            if old.shape == mold.host.shape:
                if self._device.type == "cuda":
                    torch.cuda.synchronize()  # it may still be on its way into pages
                return old
        return torch.empty_like(mold.host, pin_memory=mold.host.is_pinned())
