"""Whose next pass verifies drafts, and how many: between the scheduler and a proposer.

Drafts take what is left of a pass and never what somebody else needs: rows of logits, tokens of
the budget, free pages. While it is *active*, a pass is planned when all tokens before it are known;
while it rests (``payoff``) passes are plain, and run ahead where they can. Belongs to the engine
loop's thread.
"""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as View
from typing import Protocol

from engine.errors import DeviceLost
from engine.observer import Observer
from engine.sequence import Sequence
from engine.speculation.proposer import Ask, Proposer

log = logging.getLogger(__name__)
Reach = Callable[[Sequence, int], bool]  # gets a sequence pages for so many tokens more


class Judge(Protocol):
    """Says whether drafts are worth it."""

    def pays(self, sequences: int) -> bool:
        """Whether the next pass is to verify drafts, of so many sequences that decode."""
        ...

    def took(self, seconds: float, *, sequences: int, verified: int, kept: int) -> None:
        """A pass that only decoded took so long, with so many drafts, of which so many were
        kept."""
        ...


class Speculation:
    def __init__(
        self,
        proposer: Proposer,
        *,
        most: int,
        rows: int,
        judge: Judge,
        observer: Observer | None = None,
    ) -> None:
        """``most``: drafts of one sequence. ``rows``: drafts of a pass."""
        self._proposer, self._most, self._rows = proposer, most, rows
        self._judge, self._observer = judge, observer or Observer()
        self._active, self._failed = True, False

    @property
    def active(self) -> bool:
        """Drafts may be verified by the next pass, so all tokens have to be known."""
        return self._active

    def drafts(self, sequences: View[Sequence], room: int, reach: Reach) -> Mapping[int, View[int]]:
        """By sequence number, of these that decode. ``room``: tokens left of the pass."""
        if not sequences:
            return {}
        self._active = not self._failed and self._judge.pays(len(sequences))
        if not self._active:
            return {}
        each = min(self._most, min(room, self._rows) // len(sequences))
        asks = [ask for sequence in sequences if (ask := _ask(sequence, each, reach))]
        if not asks:
            return {}
        found = self._propose(asks)
        by_number = {sequence.number: sequence for sequence in sequences}
        fitting = {
            ask.sequence: _fitting(by_number[ask.sequence], found.get(ask.sequence, ())[: ask.most])
            for ask in asks
        }
        return {number: drafts for number, drafts in fitting.items() if drafts}

    def _propose(self, asks: View[Ask]) -> Mapping[int, View[int]]:
        """A proposer that fails is not asked again: answers need no drafts."""
        try:
            return self._proposer.propose(asks)
        except DeviceLost:
            raise
        except Exception as error:
            log.error("no more drafts are made: the proposer failed", exc_info=error)
            self._failed, self._active = True, False
            return {}

    def kept(self, tenant: str, *, drafts: int, kept: int) -> None:
        """A pass verified drafts of a sequence."""
        self._observer.verified(tenant, drafts=drafts, kept=kept)

    def took(self, seconds: float, *, sequences: int, verified: int, kept: int) -> None:
        """A pass that only decoded took so long."""
        if sequences:
            self._judge.took(seconds, sequences=sequences, verified=verified, kept=kept)
            self._active = not self._failed and self._judge.pays(sequences)

    def forget(self, sequence: int) -> None:
        self._proposer.forget(sequence)


def _ask(sequence: Sequence, each: int, reach: Reach) -> Ask | None:
    """None where no draft is of use. A token is drawn after the last draft."""
    request = sequence.request
    most = min(each, request.limit - len(sequence.output) - 1)
    if request.metered:
        most = min(most, request.granted - request.spent - 1)
    if most < 1 or sequence.drawing or not reach(sequence, most):
        return None
    return Ask(
        sequence=sequence.number,
        prompt=request.submit.tokens,
        output=sequence.output,
        most=most,
        pages=sequence.pages,
        adapter=sequence.row,
    )


def _fitting(sequence: Sequence, drafts: View[int]) -> View[int]:
    """Those that its grammar takes."""
    if sequence.matcher is None or not drafts:
        return drafts
    return drafts[: sequence.matcher.fitting(drafts)]
