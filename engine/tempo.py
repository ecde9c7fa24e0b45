"""How many prompt tokens fit beside decoding sequences within the time a pass may take.

Learnt from the passes themselves: the time of one that only decodes, and what each prompt token
added to one that did both. Costs grow quickly with what is seen and fall slowly, since a prompt's
later chunks read more context than its first. Where prompts never cease, no pass only decodes by
itself, and what decodes take would be charged to prompts: now and then one is planned without
prompts, to look. Captured passes are padded to sizes of theirs; one that would fill little of its
size is kept to the size below. Belongs to the engine loop's thread.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

SHARE = 0.5  # of the target, for prompts however long the decodes take: a full batch must fill up
FEW = 32  # prompt tokens from which nothing is learnt
LEAST = 64  # prompt tokens beside decodes whatever they cost: a prompt always gets on
BLEND = 0.2  # how far an estimate moves towards a sample that is lower
LOOK = 64  # passes with prompts and decodes after which one only decodes
SOON = 4  # likewise, while nothing is known of decodes
GROWN = 2  # times the sequences that decoded when it was looked last: look again
EXTRA = 0.2  # of the target, that a pass may take longer so that a prompt ends in it
FULL = 0.85  # of a size, from which it is worth its padding
OUTLIER = 4.0  # a sample counts as at most this many times the estimate


@dataclass(frozen=True, slots=True)
class _Most:
    """How long prompts may make a pass: the longest of these."""

    growth: float  # of what its decodes take
    share: float  # of the target
    seconds: float  # where there is none


class Company(Enum):
    """Who is about, and so how long prompts may make a pass."""

    NONE = None  # one tenant: up to the target
    SEVERAL = _Most(growth=2.0, share=0.95, seconds=0.2)  # what a pass costs by itself has to pay
    WAITING = _Most(growth=1.4, share=0.5, seconds=0.1)  # one of them waits for this very pass


class Tempo:
    def __init__(self, target_s: float | None, sizes: Sequence[int] = ()) -> None:
        """``target_s`` of a pass with decodes in it; None: no limit. ``sizes``: tokens that passes
        are padded to, ascending."""
        self._target_s, self._sizes = target_s, sizes
        self._decode_s = 0.0
        self._token_s = 0.0
        self._mixed = 0  # passes since the last that only decoded
        self._decoded = 0  # sequences in that one

    @property
    def token_s(self) -> float:
        """What a prompt's token takes; 0: nobody knows yet."""
        return self._token_s

    def prompt_tokens(self, *, decodes: int, most: int, company: Company = Company.NONE) -> int:
        """Prompt tokens the next pass may compute beside so many decodes.

        In company nobody may make passes long for the others, also where nobody decodes yet.
        """
        target_s, shared = self._target_s, company.value
        if shared is not None:
            least_s = shared.share * target_s if target_s else shared.seconds
            target_s = min(target_s or math.inf, max(shared.growth * self._decode_s, least_s))
        if not target_s or not self._token_s or not (decodes or shared is not None):
            return most
        left_s = max(target_s - self._decode_s, SHARE * target_s)
        fitting = self._sized(int(left_s / self._token_s), decodes)
        return min(most, max(LEAST, fitting))

    def _sized(self, tokens: int, decodes: int) -> int:
        place = bisect_left(self._sizes, tokens + decodes)
        if not 0 < place < len(self._sizes):
            return tokens
        is_full = tokens + decodes >= FULL * self._sizes[place]
        return tokens if is_full else self._sizes[place - 1] - decodes

    def extra(self) -> int:
        """Prompt tokens beyond those that fit, for prompts that end in the pass by them."""
        if not self._target_s or not self._token_s:
            return 0
        return int(EXTRA * self._target_s / self._token_s)

    def looks(self, decodes: int, company: Company = Company.NONE) -> bool:
        """Whether the next pass is to have no prompts, to show what so many decodes take."""
        limited = self._target_s is not None or company is not Company.NONE
        if not decodes or not limited or self._mixed < SOON:
            return False
        return self._mixed >= LOOK or decodes > GROWN * self._decoded

    def took(self, seconds: float, *, decodes: int, prompt_tokens: int) -> None:
        """A pass of so much work took so long."""
        if seconds <= 0:
            return
        if not prompt_tokens:
            self._decode_s = _towards(self._decode_s, seconds)
            self._mixed, self._decoded = 0, decodes
            return
        self._mixed += decodes > 0
        if prompt_tokens < FEW and self._token_s:
            return  # what they cost is lost in how passes vary
        beside = self._decode_s if decodes else 0.0
        sample = max(seconds - beside, 0.1 * seconds) / prompt_tokens
        if decodes or not self._token_s:  # a pass of its own is larger and cheaper per token
            self._token_s = _towards(self._token_s, sample)


def _towards(estimate: float, sample: float) -> float:
    if not estimate:
        return sample
    sample = min(sample, OUTLIER * estimate)
    return sample if sample > estimate else estimate + BLEND * (sample - estimate)
