"""Drafts without a model: what followed when a sequence's last tokens came before.

For each sequence an index of all runs of ``lookup_min`` tokens says where they ended, most recent
last. A run is entered once as many tokens as are drafted follow it, so that what is found goes on.
Of the latest places the one that has most tokens before it in common, up to ``lookup_max``, is
taken, the most recent of equals. A long prompt is entered in parts, one at each turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.speculation.proposer import Ask

ENTERED = 4096  # runs entered in one turn
COMPARED = 4  # places


@dataclass(slots=True)
class _History:
    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # after each run
    entered: int = 0  # the end of the last run that is


class NgramProposer:
    """A ``Proposer``."""

    def __init__(self, *, tokens: int, lookup_min: int, lookup_max: int) -> None:
        """``tokens``: drafts a sequence is asked for at most."""
        self._tokens, self._shortest, self._longest = tokens, lookup_min, lookup_max
        self._histories: dict[int, _History] = {}

    def propose(self, asks: Sequence[Ask]) -> Mapping[int, Sequence[int]]:
        found = {ask.sequence: self._after(ask) for ask in asks}
        return {sequence: drafts for sequence, drafts in found.items() if drafts}

    def forget(self, sequence: int) -> None:
        self._histories.pop(sequence, None)

    def _after(self, ask: Ask) -> list[int]:
        history = self._history(ask)
        tokens = history.tokens
        places = history.ends.get(tuple(tokens[-self._shortest :]), ())
        if not places or len(tokens) < self._shortest:
            return []
        place = max(places, key=lambda end: (self._common(tokens, end), end))
        return tokens[place : place + ask.most]

    def _history(self, ask: Ask) -> _History:
        """What the sequence knows, entered as far as may be. What it knows never changes."""
        history = self._histories.get(ask.sequence)
        if history is None:
            history = self._histories[ask.sequence] = _History(list(ask.prompt))
        tokens = history.tokens
        tokens += ask.output[len(tokens) - len(ask.prompt) :]
        first = max(history.entered + 1, self._shortest)
        last = min(len(tokens) - self._tokens, first + ENTERED)
        for end in range(first, last + 1):
            places = history.ends.setdefault(tuple(tokens[end - self._shortest : end]), [])
            places.append(end)
            del places[:-COMPARED]
        history.entered = max(history.entered, last)
        return history

    def _common(self, tokens: list[int], end: int) -> int:
        """Tokens before ``end`` that are the last ones too."""
        common = self._shortest
        while common < min(self._longest, end) and tokens[end - 1 - common] == tokens[-1 - common]:
            common += 1
        return common
