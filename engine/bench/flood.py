"""One tenant floods, others ask for half of their share: what the others notice, and what it costs.

The share is what the engine can do at most, measured, divided by the number of tenants. Compared
are the others alone, all together, and all together as one tenant, which is first come first
served. What counts begins when the engine is full; throughput is of generated tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.bench.traffic import Arrival, Played, Player, Seen, Stream, arrivals, quantile

FLOOD = "flood"
EVERYBODY = "everybody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    others: int = 4  # tenants beside the flood
    times: float = 10.0  # of its share, that the flood asks for
    prompt: int = 64  # tokens
    answer: int = 64
    seconds: float = 60.0
    seed: int = 0

    @property
    def full_s(self) -> float:
        """By when the engine is full: what counts begins then."""
        return self.seconds / 4

    @property
    def names(self) -> list[str]:
        return [f"other{number}" for number in range(self.others)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    capacity: float  # requests a second
    alone_s: float  # the others' 95th percentile of the time to the first token
    flooded_s: float
    tokens: float  # a second, of all
    tokens_in_turn: float  # likewise, first come first served

    @property
    def slower(self) -> float:
        return self.flooded_s / self.alone_s

    @property
    def throughput(self) -> float:
        """Of what first come first served does."""
        return self.tokens / self.tokens_in_turn


def flood(player: Callable[[], Player], scene: Scene) -> Verdict:
    """``player``: of an engine that is idle. Each run is played anew."""
    capacity = _capacity(player(), scene)
    share = capacity / (scene.others + 1)
    others = [_stream(scene, name, share / 2) for name in scene.names]
    both = arrivals(
        [_stream(scene, FLOOD, share * scene.times), *others], scene.seconds, scene.seed
    )
    alone = _play(player(), arrivals(others, scene.seconds, scene.seed), scene)
    together = _play(player(), both, scene)
    in_turn = _play(player(), [replace(one, tenant=EVERYBODY) for one in both], scene)
    return Verdict(
        capacity=capacity,
        alone_s=_first_token_s(alone, scene),
        flooded_s=_first_token_s(together, scene),
        tokens=together.rate(scene.full_s),
        tokens_in_turn=in_turn.rate(scene.full_s),
    )


def _capacity(player: Player, scene: Scene) -> float:
    """Requests a second, once as many run as can."""
    many = [
        Arrival(at_s=0.0, tenant=EVERYBODY, prompt=one.prompt, answer=one.answer)
        for one in arrivals([_stream(scene, EVERYBODY, 1000 / scene.seconds)], scene.seconds)
    ]
    played = player.play(many, until_s=scene.seconds)
    return played.rate(scene.full_s) / scene.answer


def _stream(scene: Scene, tenant: str, rate: float) -> Stream:
    return Stream(tenant=tenant, rate=rate, prompt=scene.prompt, answer=scene.answer)


def _play(player: Player, wanted: Sequence[Arrival], scene: Scene) -> Played:
    return player.play(wanted, until_s=scene.seconds)


def _first_token_s(played: Played, scene: Scene) -> float:
    """Of those who came once the flood had filled the engine and while there was time to answer."""
    first, last = scene.full_s, scene.seconds * 0.9
    seen = [one for one in played.of(scene.names) if first < one.arrival.at_s < last]
    waited = [played.seconds - one.arrival.at_s for one in seen if one.first_s is None]
    return quantile([*(s for s in map(_waited, seen) if s is not None), *waited], 0.95)


def _waited(one: Seen) -> float | None:
    return one.to_first_token_s
