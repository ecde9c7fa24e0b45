"""More adapters than anybody has seen at once: where they lie, and what moving them costs.

Every adapter once, cold in the pool and there in host memory, then every one again. Then cold ones
come while others decode, beside the same with adapters that are in the pool already; both are
played twice, in turn, so that neither has the better half of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.bench.rows import Found
from engine.bench.tenants_alone import ROOM, Alone, first_token
from engine.bench.traffic import Arrival, Played, quantile
from engine.pages import Kind
from engine.protocol import AdapterRef

PROMPT, ANSWER = 64, 16  # tokens at most: what rests of them must not take the adapters' pages
TRIED = 30  # cold adapters that come one by one
APART_S = 0.1  # one such arrival every so often
QUIET_S = 0.5  # others decode so long before the first
PATIENCE_S = 20.0  # with the last


@dataclass(slots=True)
class _Beside:
    """What runs with cold adapters, or the same with warm ones, brought."""

    gaps: list[float]  # seconds between tokens of the others
    first_s: list[float]  # to the first token of those who came


class Churn:
    def __init__(self, alone: Alone) -> None:
        self._alone, self._core = alone, alone.core
        self._adapters: int = alone.options.adapters
        self._prompt_len: int = min(PROMPT, alone.options.input_len)
        self._next = self._adapters  # the first digest nobody has used

    def figures(self) -> list[Found]:
        return [*self._passes(), *self._cold_alone(), *self._cold_beside()]

    def _passes(self) -> list[Found]:
        """Each adapter once, then each again."""
        refs = self._alone.refs(0, self._adapters)
        core, residency = self._core, self._core.residency
        base = self._at_once([None] * min(self._adapters, ROOM))
        first = [self._wave(refs[at : at + ROOM]) for at in range(0, len(refs), ROOM)]
        loads, evictions = residency.loads, residency.evictions
        held = core.pool.holdings(Kind.ADAPTER)
        self._alone.say(f"{residency.count} adapters in {held} of {core.pool.num_pages} pages")
        again = [
            self._at_once(refs[at : at + ROOM]) for at in range(0, len(refs), ROOM)
        ]  # fmt: skip
        self._alone.say(f"once again: {residency.loads - loads} loads")
        left = core.pool.num_pages - core.pool.holdings(Kind.ADAPTER)
        return [
            ("adapters in the pool", float(residency.count), "adapters"),
            ("pages left for KV", float(left), "pages"),
            ("tokens of KV left", float(left * self._alone.options.block_size), "tokens"),
            ("loads, first time", float(loads), "loads"),
            ("loads, second time", float(residency.loads - loads), "loads"),
            ("evictions, first time", float(evictions), "evictions"),
            ("base: throughput", base.rate(0), "tokens/s"),
            ("cold adapters: throughput", _rate(first), "tokens/s"),
            ("warm adapters: throughput", _rate(again), "tokens/s"),
        ]

    def _wave(self, refs: Sequence[AdapterRef]) -> Played:
        self._alone.fetch(refs)
        return self._at_once(refs)

    def _at_once(self, refs: Sequence[AdapterRef | None]) -> Played:
        """A request for each."""
        answer = min(ANSWER, self._alone.options.output_len)
        return self._alone.whole(
            [
                Arrival(at_s=0.0, tenant="t", prompt=self._prompt(number), answer=answer,
                        adapter=ref)
                for number, ref in enumerate(refs)
            ]
        )  # fmt: skip

    def _prompt(self, seed: int) -> list[int]:
        return self._alone.prompt(self._prompt_len, seed)

    def _cold_alone(self) -> list[Found]:
        """First tokens of adapters one after the other, nothing else running."""
        refs = self._fresh()
        cold = [self._one(ref, seed) for seed, ref in enumerate(refs)]
        warm = [self._one(ref, 1000 + seed) for seed, ref in enumerate(refs)]
        self._alone.say("cold and warm adapters came one by one")
        return [
            ("cold adapter alone: P50 to first token", first_token(cold), "ms"),
            ("warm adapter alone: P50 to first token", first_token(warm), "ms"),
            ("a cold adapter alone adds to its first token (limit 10)",
             first_token(cold) - first_token(warm), "ms"),
        ]  # fmt: skip

    def _one(self, ref: AdapterRef, seed: int) -> Played:
        return self._alone.one(self._prompt(10_000 + seed), ref)

    def _cold_beside(self) -> list[Found]:
        cold, warm = _Beside([], []), _Beside([], [])
        for turn in range(2):
            refs = self._fresh()
            for kind, seed in ((cold, 2 * turn), (warm, 2 * turn + 1)):
                self._beside(kind, refs, 1000 * seed)
        others = {
            name: 1000 * quantile(kind.gaps, 0.99)
            for name, kind in (("cold", cold), ("warm", warm))
        }
        firsts = [1000 * quantile(kind.first_s, 0.5) for kind in (cold, warm)]
        self._alone.say("cold and warm adapters came beside others")
        return [
            ("cold adapter beside others: P50 to first token", firsts[0], "ms"),
            ("warm adapter beside others: P50 to first token", firsts[1], "ms"),
            ("a cold adapter beside others adds to its first token (limit 10)",
             firsts[0] - firsts[1], "ms"),
            ("others while cold adapters come: P99 between tokens", others["cold"], "ms"),
            ("others while warm adapters come: P99 between tokens", others["warm"], "ms"),
            ("others' P99 between tokens by cold adapters (limit 1.05)",
             others["cold"] / max(others["warm"], 1e-9), "times"),
        ]  # fmt: skip

    def _beside(self, found: _Beside, refs: Sequence[AdapterRef], seed: int) -> None:
        """Others decode all the time; every adapter is asked for once."""
        alone, options = self._alone, self._alone.options
        half = max(1, options.max_num_seqs // 2)
        others = [
            Arrival(at_s=0.0, tenant="others", prompt=alone.prompt(16, seed=number),
                    answer=alone.longest - 17)
            for number in range(half)
        ]  # fmt: skip
        coming = [
            Arrival(at_s=QUIET_S + APART_S * number, tenant="new", answer=2, adapter=ref,
                    prompt=self._prompt(20_000 + seed + number))
            for number, ref in enumerate(refs)
        ]  # fmt: skip
        last = QUIET_S + APART_S * len(refs)

        def done(played: Played) -> bool:
            return all(one.ended or one.refused for one in played.of(["new"]))

        played = alone.player().play([*others, *coming], until_s=last + PATIENCE_S, until=done)
        late = [one for one in played.of(["new"]) if not one.ended]
        if late:
            raise RuntimeError(f"{len(late)} adapters were not served in time: {late[0].refused}")
        found.gaps += played.gaps("others", QUIET_S)
        found.first_s += [one.to_first_token_s or 0.0 for one in played.of(["new"])]

    def _fresh(self) -> list[AdapterRef]:
        """Adapters that were never in the pool, in host memory."""
        count = min(TRIED, self._adapters, ROOM)
        refs = self._alone.refs(self._next, count)
        self._next += count
        self._alone.fetch(refs)
        return refs


def _rate(waves: Sequence[Played]) -> float:
    """Tokens a second, of all together."""
    tokens = sum(n for wave in waves for _, n in wave.tokens)
    return tokens / sum(wave.seconds for wave in waves)
