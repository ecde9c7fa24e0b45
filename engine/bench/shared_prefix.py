"""Many prompts with one beginning: what is not computed again, and the pages they take."""

from collections.abc import Sequence

from engine.bench.rows import Found
from engine.bench.tenants_alone import Alone, first_token
from engine.bench.traffic import Arrival, Played
from engine.pages import Kind

SHARED_PAGES, OWN_PAGES = 10, (5, 10, 3)  # of three prompts with one beginning
OWN = 8  # tokens of a prompt's own


class SharedPrefix:
    def __init__(self, alone: Alone) -> None:
        self._alone, options = alone, alone.options
        self._length: int = min(options.prefix_len, alone.longest - OWN - 2)

    def figures(self) -> list[Found]:
        alone = self._alone
        beginning = alone.prompt(self._length, seed=40_000)
        cold, warm = list[Played](), list[Played]()
        for number in range(alone.options.rounds):
            other = alone.prompt(self._length, seed=41_000 + number)
            cold.append(alone.one([*other, *alone.prompt(OWN, seed=number)]))
            alone.one([*beginning, *alone.prompt(OWN, seed=100 + number)])
            warm.append(alone.one([*beginning, *alone.prompt(OWN, seed=200 + number)]))
        held, apart = self._held()
        alone.say("prompts with one beginning were asked for")
        return [
            ("tokens of the beginning", float(self._length), "tokens"),
            ("nothing cached: P50 to first token", first_token(cold), "ms"),
            ("beginning cached: P50 to first token", first_token(warm), "ms"),
            ("pages of three with one beginning", float(held), "pages"),
            ("pages of three apart", float(apart), "pages"),
            ("nodes of the tree", float(alone.core.seating.prefix.nodes), "pages"),
        ]

    def _held(self) -> tuple[int, int]:
        pool, alone = self._alone.core.pool, self._alone
        size = alone.options.block_size
        beginning = alone.prompt(SHARED_PAGES * size, seed=7)
        prompts = [[*beginning, *alone.prompt(own * size - 8, seed=own)] for own in OWN_PAGES]
        alone.one(prompts[0])  # its pages are in the tree
        resting, most = pool.holdings(Kind.ADAPTER), 0

        def look() -> None:
            nonlocal most
            most = max(most, pool.num_pages - pool.free_pages - pool.resting_pages)

        wanted: Sequence[Arrival] = [
            Arrival(at_s=0.0, tenant="t", prompt=prompt, answer=4) for prompt in prompts
        ]
        alone.whole(wanted, each=look)
        return most - resting, sum(SHARED_PAGES + own for own in OWN_PAGES)
