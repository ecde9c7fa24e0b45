"""Who asks for what: adapters by Zipf's law, and conversations that go on."""

import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate

from gateway.fleet.router import Wish

LONGEST = 2048  # tokens of a prompt
SYSTEM = 96  # tokens with which every conversation of an adapter begins
PROMPT, ANSWER = (90, 1.4), (160, 1.0)  # median and sigma of log-normal lengths, as chats have them


@dataclass(slots=True)
class Conversation:
    number: int
    adapter: int
    digest: str
    tenant: str
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds
    conversation: Conversation
    prompt: int  # tokens of the conversation that are the prompt
    answer: int  # tokens
    wish: Wish


@dataclass(slots=True)
class Traffic:
    adapters: int
    rate: float  # requests per second
    seed: int = 1
    goes_on: float = 0.6  # share of requests that continue a conversation
    alive: int = 20_000  # conversations that may be continued
    _random: random.Random = field(init=False)
    _weights: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._weights = list(accumulate(1 / rank for rank in range(1, self.adapters + 1)))

    def arrivals(self, count: int) -> Iterator[Arrival]:
        """In order of time; the same for the same seed."""
        rng, now = self._random, 0.0
        open_ones: list[Conversation] = []
        for number in range(count):
            now += rng.expovariate(self.rate)
            going_on = bool(open_ones) and rng.random() < self.goes_on
            if going_on:
                place = rng.randrange(len(open_ones))
                said = open_ones[place]
            else:
                said = self._begun(number)
                place = len(open_ones)
                open_ones.append(said)
                if len(open_ones) > self.alive:
                    place = rng.randrange(self.alive)
                    open_ones[place] = open_ones.pop()
            self._say(said, self._length(PROMPT))
            prompt, answer = len(said.tokens), self._length(ANSWER)
            wish = Wish(said.digest, said.tenant, said.tokens[:prompt])
            yield Arrival(now, said, prompt, answer, wish)
            if prompt + answer < LONGEST:
                self._say(said, answer)
            else:
                open_ones[place] = open_ones[-1]
                open_ones.pop()

    def _begun(self, number: int) -> Conversation:
        adapter = bisect(self._weights, self._random.random() * self._weights[-1])
        system = [(adapter * 31 + i) % 32_000 for i in range(SYSTEM)]
        digest = sha256(b"%d" % adapter).hexdigest()
        return Conversation(number, adapter, digest, f"tenant-{adapter // 8}", system)

    def _say(self, said: Conversation, tokens: int) -> None:
        room = max(LONGEST - len(said.tokens), 0)
        start = self._random.randrange(32_000)
        said.tokens += [(start + i) % 32_000 for i in range(min(tokens, room))]

    def _length(self, shape: tuple[int, float]) -> int:
        median, sigma = shape
        return min(max(int(median * self._random.lognormvariate(0.0, sigma)), 1), LONGEST)
