"""Drafts without a model: what followed when a sequence's last tokens came before.

For each sequence an index of all runs of ``lookup_min`` tokens says where they ended, most recent
last. A run is entered once as many tokens as are drafted follow it, so that what is found goes on.
Of the latest places the one that has most tokens before it in common, up to ``lookup_max``, is
taken, the most recent of equals. Long prompts are entered in parts, some at each turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.speculation.proposer import Ask

ENTERED = 4096  # runs entered in one turn, of all sequences: some milliseconds
FEW = 32  # of a sequence that nothing is left for
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
        found, left = dict[int, list[int]](), ENTERED
        for ask in asks:
            history = self._history(ask)
            left -= self._enter(history, max(left, FEW))
            found[ask.sequence] = self._after(history, ask.most)
        return {sequence: drafts for sequence, drafts in found.items() if drafts}

    def forget(self, sequence: int) -> None:
        self._histories.pop(sequence, None)

    def _after(self, history: _History, most: int) -> list[int]:
        tokens = history.tokens
        places = history.ends.get(tuple(tokens[-self._shortest :]), ())
        if not places or len(tokens) < self._shortest:
            return []
        place = max(places, key=lambda end: (self._common(tokens, end), end))
        return tokens[place : place + most]

    def _history(self, ask: Ask) -> _History:
        """What the sequence knows, which never changes."""
        history = self._histories.get(ask.sequence)
        if history is None:
            history = self._histories[ask.sequence] = _History(list(ask.prompt))
        history.tokens += ask.output[len(history.tokens) - len(ask.prompt) :]
        return history

    def _enter(self, history: _History, most: int) -> int:
        """Enter so many runs at most. Returns how many were."""
        tokens = history.tokens
        first = max(history.entered + 1, self._shortest)
        last = min(len(tokens) - self._tokens, first + most - 1)
        for end in range(first, last + 1):
            places = history.ends.setdefault(tuple(tokens[end - self._shortest : end]), [])
            places.append(end)
            del places[:-COMPARED]
        history.entered = max(history.entered, last)
        return max(last + 1 - first, 0)

    def _common(self, tokens: list[int], end: int) -> int:
        """Tokens before ``end`` that are the last ones too."""
        common = self._shortest
        while common < min(self._longest, end) and tokens[end - 1 - common] == tokens[-1 - common]:
            common += 1
        return common
