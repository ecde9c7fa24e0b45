"""How many prompt tokens fit beside decoding sequences within the time a pass may take.

Learnt from the passes themselves: the time of one that only decodes, and what each prompt token
added to one that did both. Costs grow quickly with what is seen and fall slowly, since a prompt's
later chunks read more context than its first. Belongs to the engine loop's thread.
"""

import math

SHARE = 0.5  # of the target, for prompts however long the decodes take: a full batch must fill up
FEW = 32  # prompt tokens from which nothing is learnt
GROWTH = 2.0  # of a pass by prompts, at most, where several tenants share it
SHORT_S = 0.2  # a pass that nobody need shorten for others, where no target is set
LEAST = 64  # prompt tokens beside decodes whatever they cost: a prompt always gets on
BLEND = 0.2  # how far an estimate moves towards a sample that is lower
OUTLIER = 4.0  # a sample counts as at most this many times the estimate


class Tempo:
    def __init__(self, target_s: float | None) -> None:
        """``target_s`` of a pass with decodes in it; None: no limit."""
        self._target_s = target_s
        self._decode_s = 0.0
        self._token_s = 0.0

    def prompt_tokens(self, *, decodes: int, most: int, shared: bool = False) -> int:
        """Prompt tokens the next pass may compute beside so many decodes.

        ``shared``: by several tenants, of whom nobody may make passes long for the others, also
        where nobody decodes yet.
        """
        target_s = self._target_s
        if shared:
            least_s = SHARE * target_s if target_s else SHORT_S
            target_s = min(target_s or math.inf, max(GROWTH * self._decode_s, least_s))
        if not target_s or not self._token_s or not (decodes or shared):
            return most
        left_s = max(target_s - self._decode_s, SHARE * target_s)
        fitting = int(left_s / self._token_s)
        return min(most, max(LEAST, fitting))

    def took(self, seconds: float, *, decodes: int, prompt_tokens: int) -> None:
        """A pass of so much work took so long."""
        if seconds <= 0:
            return
        if not prompt_tokens:
            self._decode_s = _towards(self._decode_s, seconds)
            return
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
