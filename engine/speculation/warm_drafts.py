"""Has a watcher do once what it will do, so that its kernels are compiled before requests come."""

from collections.abc import Sequence

import torch

from engine.speculation.proposer import Ask
from engine.speculation.watcher import Seen, Watcher
from engine.step import Chunk

SEQUENCES = (1, 2, 8, 64)  # of a pass
PROMPT = 3
DRAFTS = 2
TOKEN = 0


def warm_drafts(
    watcher: Watcher, *, hidden: int, dtype: torch.dtype, device: torch.device, most: int
) -> None:
    """Over its first page, which nobody has yet. ``most``: sequences at a time; a page has room
    for a prompt and its drafts."""
    for count in sorted({min(size, most) for size in SEQUENCES}):
        numbers = [-1 - number for number in range(count)]
        _prompts(watcher, numbers, hidden, dtype, device)
        watcher.propose(
            [
                Ask(
                    sequence=number,
                    prompt=[TOKEN] * PROMPT,
                    output=[TOKEN],
                    most=DRAFTS,
                    pages=(0,),
                )
                for number in numbers
            ]
        )
        for number in numbers:
            watcher.forget(number)


def _prompts(
    watcher: Watcher,
    numbers: Sequence[int],
    hidden: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    chunks = [
        Chunk(sequence=number, tokens=[TOKEN] * PROMPT, start=0, pages=(0,)) for number in numbers
    ]
    width = len(watcher.layers) * hidden
    rows = PROMPT * len(numbers)
    features = torch.zeros((rows, width), dtype=dtype, device=device) if width else None
    first = [PROMPT * place for place in range(len(numbers))]
    watcher.watch(Seen(chunks=chunks, first_rows=first, features=features))
