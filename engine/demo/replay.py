"""What a head would have drafted of answers that are known, and so how many tokens a pass brings.

A greedy answer comes out the same with drafts and without, so nothing needs to be said again:
every pass begins at a token of the answer, keeps the drafts that agree with what follows, and
brings one token of its own. That sum is the acceptance length of the EAGLE papers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.demo.eagle_head import Head, turned
from engine.demo.teacher import Recording, padded

_TOGETHER = 16


@dataclass(slots=True)
class Passes:
    """Those after the prompts'."""

    passes: int = 0
    tokens: int = 0
    kept_at: list[int] = field(default_factory=list)  # passes that kept the first, second, ..

    @property
    def tokens_a_pass(self) -> float:
        return self.tokens / max(1, self.passes)

    @property
    def shares(self) -> list[float]:
        return [count / max(1, self.passes) for count in self.kept_at]

    def walk(self, agrees: Sequence[Sequence[bool]], first: int, length: int) -> None:
        """One answer: from token ``first`` to the last of ``length``. ``agrees[S][i]``: draft S of
        the pass that begins with token i is what follows."""
        self.kept_at += [0] * (len(agrees) - len(self.kept_at))
        at = first
        while at < length - 1:
            kept = 0
            while kept < min(len(agrees), length - 2 - at) and agrees[kept][at]:
                self.kept_at[kept] += 1
                kept += 1
            self.passes += 1
            self.tokens += kept + 1
            at += kept + 1


@torch.inference_mode()
def replay(head: Head, said: torch.Tensor, recordings: Sequence[Recording], drafts: int) -> Passes:
    """``said``: the tokens that the head can say [N]."""
    found = Passes()
    for start in range(0, len(recordings), _TOGETHER):
        part = recordings[start : start + _TOGETHER]
        batch = padded(part)
        follows = batch.tokens[:, 2:]
        agrees = []
        for turn, hidden in enumerate(turned(head, batch, drafts)):
            drafted = said.to(follows.device)[head.say(hidden[:, turn:-1]).argmax(-1)]
            right = drafted == follows[:, turn:]
            # Of position q, whose token is the one at q + 1: begun there, one place later.
            agrees.append(torch.nn.functional.pad(right, (1, turn + 1)).tolist())
        for row, recording in enumerate(part):
            found.walk(
                [turn[row] for turn in agrees], recording.learned_from, len(recording.tokens)
            )
    return found
