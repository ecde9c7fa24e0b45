"""Proves that the books agree: ledger = roll-ups, closed months as they were closed, and what the
engines recorded by themselves = what the ledger says of their requests.

A difference is a fault of ours, and is told with its place. What the ledger leaves out on purpose
is no difference, but is counted: tokens past a stop string, an answer that its engine's death or
its gateway's cut short, the one token behind an echo. An engine that is killed leaves no final
count of what ran; that is billed by what arrived from it. A line of a batch is billed once, for
the attempt that answered it, and not at all where none did; a prompt that went to another engine
because its first was lost, for the last one. Requests of the last minute may still
be on their way into the ledger, and are counted as that.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.protocol import Counts
from gateway.db import Database
from gateway.usage.event import EPOCH
from gateway.usage.reconcile_repository import Billed, ReconcileRepository, Sums
from gateway.usage.record import Outcome
from gateway.usage.repository import LedgerRepository
from gateway.usage.retention_repository import RetentionRepository
from gateway.usage.rollup_repository import GRAINS, WEEKLY

GRACE_S = 60.0
CHUNK = 1000  # ids in one query
PARTS = 3  # of the database's own: roll-ups, dropped days, closed months
MOST_TOLD = 20  # differences of one kind that are told one by one
PART = re.compile(r"(req_[0-9a-f]{32}(?:~[\d.]+)?)-\d+")  # of a request with several prompts
ATTEMPT = re.compile(r"(req_[0-9a-f]{32})~([\d.]+)")  # at a line of a batch
TRY = re.compile(r"(.+)\+(\d+)")  # of a prompt whose engine was lost before anything came
LOST = "an attempt at a batch's line was lost"
CUT_SHORT = frozenset({Outcome.ENGINE_LOST, Outcome.FAILED, Outcome.CANCELLED, Outcome.DEADLINE})


@dataclass(frozen=True, slots=True)
class Difference:
    check: str
    place: str
    ledger: int
    other: int

    def __str__(self) -> str:
        return f"{self.check}: {self.place}: the ledger has {self.ledger}, the other {self.other}"


@dataclass(slots=True)
class Findings:
    """What was compared, what is not the same, and what is left out on purpose."""

    compared: dict[str, int] = field(default_factory=dict)
    unbilled: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # tokens, by reason
    differences: list[Difference] = field(default_factory=list)

    def count(self, what: str) -> None:
        self.compared[what] = self.compared.get(what, 0) + 1

    def differ(self, check: str, place: str, ledger: int, other: int) -> None:
        if ledger != other:
            self.differences.append(Difference(check, place, ledger, other))


class Reconciliation:
    """Reads only. ``recorded``: what each engine says, see ``merged``."""

    def __init__(
        self,
        database: Database,
        *,
        now: float | None = None,
        watch: Callable[[int, int], None] = lambda done, of: None,  # steps
    ) -> None:
        self._database = database
        self._watch = watch
        self._now = time.time() if now is None else now
        self._kept_from = EPOCH

    async def run(self, recorded: Mapping[str, Counts] | None = None) -> Findings:
        findings = Findings()
        async with self._database.reading() as session:
            rows = ReconcileRepository(session)
            kept = RetentionRepository(session)
            self._kept_from = await kept.kept_from()
            self._watch(0, PARTS)
            await self._rollups(rows, findings)
            self._watch(1, PARTS)
            await self._dropped(rows, kept, findings)
            self._watch(2, PARTS)
            await self._periods(LedgerRepository(session), findings)
            self._watch(PARTS, PARTS)
            if recorded is not None:
                await self._engines(rows, recorded, findings)
        return findings

    async def _rollups(self, rows: ReconcileRepository, findings: Findings) -> None:
        ledger = await rows.added_up(self._kept_from)
        rolled = await rows.rolled_up(self._kept_from)
        findings.compared["quarters of an hour by project"] = len(ledger)
        _compare_sums("roll-ups", ledger, rolled, findings)
        by_day, by_week = await rows.rolled_by_day(), await rows.rolled_by_day(7)
        findings.compared["days by project"] = sum(bool(project) for project, _ in by_day)
        for grain, told in GRAINS.items():
            owned = "project_id" in told
            sums = by_week if grain == WEEKLY else by_day
            wanted = {place: each for place, each in sums.items() if bool(place[0]) == owned}
            _compare_sums(f"days by {grain}", wanted, await rows.days(grain), findings)

    async def _dropped(
        self, rows: ReconcileRepository, kept: RetentionRepository, findings: Findings
    ) -> None:
        """Days whose events are not kept any more: their sums against their roll-ups."""
        late, dropped = await rows.totals_before(self._kept_from), await kept.dropped()
        rolled = await rows.rolled_before(self._kept_from)
        for place, name in enumerate(("events", "nano-dollars")):
            findings.differ(
                "dropped days", f"{name} before {self._kept_from:%Y-%m-%d}",
                late[place] + dropped[place], rolled[place],
            )  # fmt: skip

    async def _periods(self, rows: LedgerRepository, findings: Findings) -> None:
        closed = await rows.closed_periods()
        findings.compared["closed months"] = len(closed)
        for row in closed:
            found = await rows.period_totals(row.period)
            for name in ("events", "cost_nano"):
                findings.differ(
                    "closed month", f"{name} of {row.period}", found[name], getattr(row, name)
                )

    async def _engines(
        self, rows: ReconcileRepository, recorded: Mapping[str, Counts], findings: Findings
    ) -> None:
        recorded, lost = last_attempts(recorded)
        names = sorted(recorded)
        findings.compared["requests the engines recorded"] = len(names)
        boots = sorted({counts.boot for counts in recorded.values()})
        findings.compared["boots"] = len(boots)
        for first in range(0, len(names), CHUNK):
            self._watch(PARTS + first, PARTS + len(names))
            chunk = names[first : first + CHUNK]
            billed = await rows.billed(chunk)
            for name in chunk:
                if name in lost and name not in billed:
                    lost[name] += recorded[name].completion_tokens
                else:
                    self._compare(name, recorded[name], billed.get(name), findings)
        if tokens := sum(lost.values()):
            findings.unbilled[LOST] += tokens
        if names:
            claimed = await rows.of_boots(boots, after=names[0])
            for name in sorted(claimed - recorded.keys()):
                findings.differences.append(Difference("engine", f"{name} is unknown", 1, 0))

    def _compare(
        self, name: str, counts: Counts, billed: Billed | None, findings: Findings
    ) -> None:
        if billed is None:
            if made_at(name) < self._kept_from.timestamp():
                findings.count("older than what the ledger keeps")
            elif self._recent(name) or not counts.finished:
                findings.count("on their way")
            elif counts.completion_tokens:
                findings.differ("engine", f"{name} is not billed", 0, counts.completion_tokens)
            return
        if not counts.finished:  # its engine died before the final count
            findings.count("billed by what arrived: the engine died before its final count")
            return
        if billed.prompt > counts.prompt_tokens and not billed.recovered:
            findings.differ("engine", f"prompt of {name}", billed.prompt, counts.prompt_tokens)
        left_out = counts.completion_tokens - billed.completion
        reason = _reason(billed)
        if left_out == 0:
            return
        if left_out > 0 and reason:
            findings.unbilled[reason] += left_out
        else:
            findings.differ("engine", f"answer of {name}", billed.completion,
                            counts.completion_tokens)  # fmt: skip

    def _recent(self, name: str) -> bool:
        return self._now - made_at(name) < GRACE_S


def _compare_sums(check: str, one: Sums, other: Sums, findings: Findings) -> None:
    for place in sorted(one.keys() | other.keys()):
        ours, theirs = one.get(place, {}), other.get(place, {})
        for name in ours.keys() | theirs.keys():
            where = f"{name} of {place}"
            findings.differ(check, where, ours.get(name, 0), theirs.get(name, 0))


def made_at(request: str) -> float:
    """Unix seconds, by the time that a UUIDv7 begins with."""
    digits = request.removeprefix("req_")[:12]
    return int(digits, 16) / 1000 if re.fullmatch(r"[0-9a-f]{12}", digits) else 0.0


def _reason(billed: Billed) -> str:
    """Why the ledger may say less than the engine; empty where it may not."""
    if billed.recovered:
        return "the gateway died"
    if billed.outcome in CUT_SHORT:
        return f"outcome {billed.outcome}"
    if billed.finish_reason == "stop":
        return "past a stop string"
    return "behind an echo" if billed.completion == 0 else ""


def last_attempts(recorded: Mapping[str, Counts]) -> tuple[dict[str, Counts], dict[str, int]]:
    """Lines of batches by their last attempts, under their own names; and how many tokens each
    line's other attempts made."""
    found: dict[str, Counts] = {}
    lost: dict[str, int] = {}
    last: dict[str, tuple[int, ...]] = {}
    for name, counts in recorded.items():
        if (attempt := ATTEMPT.fullmatch(name)) is None:
            found[name] = counts
            continue
        line, number = attempt[1], tuple(map(int, attempt[2].split(".")))
        lost.setdefault(line, 0)
        if line in found and number < last[line]:
            lost[line] += counts.completion_tokens
        else:
            lost[line] += found[line].completion_tokens if line in found else 0
            found[line], last[line] = counts, number
    return found, lost


def _last_tries(records: Iterable[Counts]) -> list[Counts]:
    """Each prompt as the engine knows it that was asked last; earlier ones told nobody anything."""
    last: dict[str, tuple[int, Counts]] = {}
    for counts in records:
        found = TRY.fullmatch(counts.request)
        name, number = (found[1], int(found[2])) if found else (counts.request, 0)
        known = last.get(name)
        if known is None or number >= known[0]:
            last[name] = number, msgspec.structs.replace(counts, request=name)
    return [counts for _, counts in last.values()]


def merged(pages: Iterable[Sequence[Counts]]) -> dict[str, Counts]:
    """By request: those with several prompts are one again."""
    found: dict[str, Counts] = {}
    for counts in _last_tries(each for page in pages for each in page):
        part = PART.fullmatch(counts.request)
        name = part[1] if part else counts.request
        known = found.get(name)
        found[name] = Counts(
            name,
            counts.boot,
            counts.prompt_tokens + (known.prompt_tokens if known else 0),
            counts.completion_tokens + (known.completion_tokens if known else 0),
            counts.finished and (known is None or known.finished),
        )
    return found
