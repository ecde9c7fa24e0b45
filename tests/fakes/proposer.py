"""A proposer that knows what the fake runner will draw, and gets some of it wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.sequence import Sequence as Running
from engine.speculation.proposer import Ask
from tests.fakes.runner import VOCAB, next_token


@dataclass
class FakeProposer:
    """``wrong``: whether a draft at a position is to be wrong; ``length``: of a position's."""

    running: Callable[[], list[Running]] = list
    wrong: Callable[[int], bool] = lambda position: False
    length: Callable[[int], int] = lambda position: 99
    asked: list[Ask] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def propose(self, asks: Sequence[Ask]) -> Mapping[int, Sequence[int]]:
        self.asked += asks
        running = {sequence.number: sequence for sequence in self.running()}
        return {ask.sequence: self._drafts(ask, running[ask.sequence]) for ask in asks}

    def forget(self, sequence: int) -> None:
        self.forgotten.append(sequence)

    def _drafts(self, ask: Ask, sequence: Running) -> list[int]:
        history = [*ask.prompt, *ask.output]
        request, drafts = sequence.request, list[int]()
        for _ in range(min(ask.most, self.length(ask.known))):
            position = len(history)
            early = position - len(ask.prompt) < request.submit.sampling.min_tokens
            token = next_token(
                history,
                request.computed_with(position) or "",
                sequence.seed,
                sorted(request.stops) if early else (),
            )
            history.append((token + 1) % VOCAB if self.wrong(position) else token)
            drafts.append(history[-1])
        return drafts
