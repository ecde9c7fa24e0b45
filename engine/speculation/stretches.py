"""What a proposer's own model computes: stretches of sequences, over pages as the base has them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from engine.batch import BatchBuilder, StepInputs
from engine.speculation.proposer import Ask
from engine.staging import send
from engine.step import Chunk, StepPlan

LATER = 0  # stands for a token that only the device knows


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive positions of one sequence."""

    sequence: int
    tokens: Sequence[int]  # any of the vocabulary, where only the device knows them
    start: int
    pages: Sequence[int]


def batch(
    builder: BatchBuilder,
    stretches: Sequence[Stretch],
    *,
    ends: bool,
    tokens: torch.Tensor | None = None,
    most: int | None = None,
) -> StepInputs:
    """``ends``: the last row of each stretch goes through the head, otherwise none does.
    ``tokens``: in the place of the stretches'. ``most``: tokens that the model has rows for."""
    chunks = [
        Chunk(sequence=each.sequence, tokens=each.tokens, start=each.start, pages=each.pages)
        for each in stretches
    ]
    inputs = builder.build(StepPlan(chunks))
    last = [end - 1 for end in accumulate(len(each.tokens) for each in stretches)] if ends else []
    tokens = inputs.tokens if tokens is None else tokens
    tokens = tokens if most is None else tokens.clamp(max=most - 1)
    return replace(inputs, tokens=tokens, head_rows=on(inputs.tokens.device, last))


def steps(asks: Sequence[Ask], first: int) -> list[tuple[list[int], list[Stretch]]]:
    """One token after another, as long as somebody wants more than one draft: which of the rows
    before go on, and where. ``first``: of each ask's first step, positions beyond those known."""
    found: list[tuple[list[int], list[Stretch]]] = []
    before = list(range(len(asks)))
    for step in range(1, max(ask.most for ask in asks)):
        rows = [row for row, i in enumerate(before) if asks[i].most > step]
        before = [before[row] for row in rows]
        found.append(
            (
                rows,
                [
                    Stretch(
                        asks[i].sequence, (LATER,), asks[i].known + first + step - 1, asks[i].pages
                    )
                    for i in before
                ],
            )
        )
    return found


def gathered(asks: Sequence[Ask], drawn: Sequence[torch.Tensor]) -> dict[int, list[int]]:
    """Drafts by sequence, of what each step drew for those that went on. Waits for the device."""
    told = iter(torch.cat(list(drawn)).tolist())
    drafts: dict[int, list[int]] = {ask.sequence: [] for ask in asks}
    for step in range(len(drawn)):
        for ask in asks:
            if ask.most > step:
                drafts[ask.sequence].append(next(told))
    return drafts


def on(device: torch.device, rows: Sequence[int]) -> torch.Tensor:
    """[R] int64, copied without waiting."""
    return send({"rows": np.asarray(rows, dtype=np.int64)}, device)["rows"]
