"""An alias that moves to a new version again and again under load.

Each request names the version its alias points to when it arrives. Later every version is asked
the same by itself: an answer that is another version's own would be a mix-up. Versions that nobody
uses any more are retired at the end, and their pages counted.
"""

from collections import Counter

from engine.bench.rows import Found
from engine.bench.tenants_alone import ROOM, Alone
from engine.bench.traffic import Arrival, Seen
from engine.core import Heard
from engine.pages import Kind, Owner
from engine.protocol import Retire

ANSWER = 4  # tokens
FIRST = 1_000_000  # digest of the first version: nobody else uses them


class Switches:
    def __init__(self, alone: Alone) -> None:
        self._alone, options = alone, alone.options
        self._count: int = min(options.switches, ROOM - 1)
        self._rate: int = options.rate
        self._versions = alone.refs(FIRST, self._count + 1)
        self._prompt = alone.prompt(24, seed=FIRST)

    def figures(self) -> list[Found]:
        alone = self._alone
        alone.fetch(self._versions)
        each = max(1, round(self._alone.options.switch_seconds * self._rate / self._count))
        wanted = [
            Arrival(at_s=number / self._rate, tenant="t", prompt=self._prompt, answer=ANSWER,
                    adapter=self._versions[number // each])
            for number in range(each * (self._count + 1))
        ]  # fmt: skip
        played = alone.player().play(wanted)
        alone.say(f"{self._count} switches, {len(wanted)} requests in {played.seconds:.1f} s")
        failed = sum(not one.ended or one.tokens != ANSWER for one in played.seen)
        kinds = self._attribute(played.seen)
        return [
            ("switches", float(self._count), "switches"),
            ("requests", len(wanted) / played.seconds, "requests/s"),
            ("requests that failed (limit 0)", float(failed), "requests"),
            ("answers of the version they name", float(kinds["own"]), "requests"),
            ("answers of another version (limit 0)", float(kinds["other"]), "requests"),
            ("answers of no version: logits that tie", float(kinds["none"]), "requests"),
            ("pages of retired versions (limit 0)", float(self._retired()), "pages"),
        ]

    def _attribute(self, seen: list[Seen]) -> Counter[str]:
        """Whose each answer is."""
        alone, answers = self._alone, dict[str, list[int]]()
        for version in self._versions:
            (one,) = alone.one(self._prompt, version, ANSWER).seen
            answers[version.digest] = one.answer
        known = {tuple(answer) for answer in answers.values()}
        kinds: Counter[str] = Counter()
        for one in seen:
            assert one.arrival.adapter is not None
            own = one.answer == answers[one.arrival.adapter.digest]
            kinds["own" if own else "other" if tuple(one.answer) in known else "none"] += 1
        return kinds

    def _retired(self) -> int:
        core = self._alone.core
        for version in self._versions:
            core.inbox.put(Heard(0, Retire(version.digest)))
        core.step()
        held = (core.pool.held(Owner(Kind.ADAPTER, v.digest)) for v in self._versions)
        return sum(map(len, held))
