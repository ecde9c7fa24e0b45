"""An engine without tensors: what it holds, how busy it is, and how long it takes."""

from collections import OrderedDict
from dataclasses import dataclass, field

from bench.routing.steps import StepTimes
from bench.routing.traffic import SYSTEM, Arrival

SEATS = 256  # sequences of a pass
ADAPTERS = 200  # that it keeps on its device
PAGE = 64


@dataclass(slots=True, eq=False)
class SimEngine:
    name: str
    times: StepTimes
    running: int = 0
    usable: bool = True
    share: float = 1 / SEATS
    resident: frozenset[str] = frozenset()  # as it was told last
    _adapters: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _computed: OrderedDict[object, int] = field(default_factory=OrderedDict)  # tokens
    _kv_tokens: int = 0
    _busy_until: float = 0.0  # with prompts

    @property
    def load(self) -> float:
        return self.running / SEATS

    def tell(self) -> None:
        """What it has now is what gateways know from here on."""
        if self._adapters.keys() != self.resident:
            self.resident = frozenset(self._adapters)

    def take(self, arrival: Arrival) -> tuple[bool, int, float, float]:
        """Adapter was warm; prompt tokens found; seconds to the first token, and to the last."""
        warm = self._adapter(arrival.conversation.digest)
        found = self._prompt(arrival)
        self.running += 1
        step = self.times.step_s(self.running)
        wait = max(self._busy_until - arrival.at, 0.0)
        work = (arrival.prompt - found) / self.times.prompt_tokens_per_s
        self._busy_until = arrival.at + wait + work
        first = wait + work + step + (0.0 if warm else self.times.cold_s)
        queue = max(self.running - SEATS, 0) * step  # beyond the seats, one waits for another
        return warm, found, first + queue, first + queue + arrival.answer * step

    def _adapter(self, digest: str) -> bool:
        warm = digest in self._adapters
        self._adapters[digest] = None
        self._adapters.move_to_end(digest)
        if len(self._adapters) > ADAPTERS:
            self._adapters.popitem(last=False)
        return warm

    def _prompt(self, arrival: Arrival) -> int:
        """Pages that are computed already, of the adapter's beginning or of the conversation."""
        said = arrival.conversation
        begun = self._computed.get(said.digest, 0)
        found = min(max(begun, self._computed.get(said.number, 0)), arrival.prompt - 1)
        self._keep(said.digest, min(SYSTEM, arrival.prompt) // PAGE * PAGE)
        self._keep(said.number, (arrival.prompt + arrival.answer) // PAGE * PAGE)
        return found // PAGE * PAGE

    def _keep(self, key: object, tokens: int) -> None:
        self._kv_tokens += tokens - self._computed.pop(key, 0)
        self._computed[key] = tokens
        while self._kv_tokens > self.times.kv_tokens:
            self._kv_tokens -= self._computed.popitem(last=False)[1]
