"""How the inputs of a captured pass of prompts and decodes lie in one block of int32.

A captured pass has sizes of its own: T tokens, D sequences that decode, S chunks of more than one
token, G segments of adapters. What a plan has fewer of is padded: with tokens that write no page,
contexts of length 0, chunks and segments without rows. Nobody reads what comes of those.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.batch import HostBatch
from engine.step import NO_ADAPTER
from kernels.segments import SEGMENT_TILES

CHUNKS = 16
ADAPTED_RUNS = 96  # segments that are not for length alone
ALIGN = 64  # elements; kernels are compiled for aligned addresses

Ints = npt.NDArray[np.int32]

_COPIED = ("tokens", "positions", "slots", "head_rows")
_OF_KIND = {"decode": ("start", "end"), "prefill": ("start", "len", "end")}
_UNUSED = {"slots": -1, "source": -1, "segment adapter": NO_ADAPTER}


@dataclass(frozen=True, slots=True)
class MixedLayout:
    tokens: int  # T
    sequences: int  # D, and rows whose hidden state is wanted
    pages: int  # of the longest sequence

    @property
    def chunks(self) -> int:
        return min(CHUNKS, self.tokens // 2)

    @property
    def segments(self) -> int:
        return self.tokens // SEGMENT_TILES[-1] + min(self.tokens, ADAPTED_RUNS)

    def fields(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Offset and shape of each array."""
        T, D, S, G = self.tokens, self.sequences, self.chunks, self.segments
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("tokens", "positions", "slots", "source"), (T,)),
            **dict.fromkeys(("head_rows", "decode start", "decode end"), (D,)),
            **dict.fromkeys(("prefill start", "prefill len", "prefill end"), (S,)),
            **dict.fromkeys(("segment start", "segment length", "segment adapter"), (G,)),
            "decode pages": (D, self.pages),
            "prefill pages": (S, self.pages),
        }
        found, end = {}, 0
        for name, shape in shapes.items():
            found[name] = end, shape
            end += -(-int(np.prod(shape)) // ALIGN) * ALIGN
        return found

    @property
    def size(self) -> int:
        """Elements."""
        offset, shape = list(self.fields().values())[-1]
        return offset + -(-int(np.prod(shape)) // ALIGN) * ALIGN

    def holds(self, host: HostBatch) -> bool:
        arrays = host.arrays
        return (
            len(arrays["tokens"]) <= self.tokens
            and len(arrays["head_rows"]) <= self.sequences
            and len(arrays.get("decode end", ())) <= self.sequences
            and len(arrays.get("prefill end", ())) <= self.chunks
            and len(host.runs) <= self.segments
        )

    def blank(self, block: Ints) -> None:
        """A pass of nothing."""
        for name, (offset, shape) in self.fields().items():
            block[offset : offset + int(np.prod(shape))] = _UNUSED.get(name, 0)

    def fill(self, host: HostBatch, block: Ints) -> None:
        """Enter a batch that fits. Pages past those of a sequence are left as they were."""
        views = {
            name: block[offset : offset + int(np.prod(shape))].reshape(shape)
            for name, (offset, shape) in self.fields().items()
        }
        arrays = host.arrays
        for name in _COPIED:
            _enter(views[name], arrays[name], _UNUSED.get(name, 0))
        views["source"][:] = -1
        if "unread" in arrays:
            views["source"][arrays["unread"]] = arrays["source"]
        for kind, facts in _OF_KIND.items():
            for fact in facts:
                _enter(views[f"{kind} {fact}"], arrays.get(f"{kind} {fact}"), 0)
            pages = arrays.get(f"{kind} pages")
            if pages is not None:
                views[f"{kind} pages"][: pages.shape[0], : pages.shape[1]] = pages
        for row, fact in enumerate(("start", "length", "adapter")):
            name = f"segment {fact}"
            _enter(views[name], arrays["runs"][row], _UNUSED.get(name, 0))


def _enter(view: Ints, values: npt.NDArray[np.integer] | None, unused: int) -> None:
    count = 0 if values is None else len(values)
    view[count:] = unused
    if values is not None:
        view[:count] = values
