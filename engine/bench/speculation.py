"""What verifying drafts costs over a plain step, and how many must be kept for it to pay.

Every row decodes after a prompt of random tokens; drafts come from a script. First all of them are
right, so that the passes are shown to keep what they should; then all are wrong, so that every pass
brings one token and passes of as many drafts can be compared. Drafts are made while all rows decode
and nobody else does, so there is one kind of pass for each number of them, and all are captured
before anything is measured.

At the break-even tokens a second are those of plain passes: as many drafts have to be kept a pass
as it takes longer than a plain one, in plain passes. Where each draft is right with the same chance
that is a chance, unless even right drafts do not pay.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.bench.alone import BenchmarkRefused, LoneEngine, Requests, adapter_ref
from engine.bench.decode import warm
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row
from engine.runner import ModelRunner
from engine.speculation.proposer import Ask

MIXES = ((8, 0), (8, 4), (1, 0), (32, 0))
DRAFTS = tuple(range(2, 9))
PROMPT, LONG = 512, 72
SETTLED = 8  # tokens after which passes count
LEAST_KEPT = 0.5  # of right drafts; what is missing are ties


@dataclass(slots=True)
class Script:
    """A proposer that knows the answers, and when to pay; ``count`` 0: passes are plain."""

    count: int = 0
    rows: int = 1  # it is silent unless so many ask
    right: bool = False
    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # by the prompt
    drafted: int = 0
    kept: int = 0
    made: dict[int, tuple[int, list[int]]] = field(default_factory=dict)  # by sequence: where, what

    def propose(self, asks: Sequence[Ask]) -> Mapping[int, Sequence[int]]:
        for ask in asks:
            self._look(ask)
        return {ask.sequence: self._drafts(ask) for ask in asks if len(asks) >= self.rows}

    def forget(self, sequence: int) -> None:
        self.made.pop(sequence, None)

    def pays(self, sequences: int) -> bool:
        return self.count > 0

    def took(self, seconds: float, *, sequences: int, verified: int, kept: int) -> None:
        """It goes by ``count`` alone."""

    def _drafts(self, ask: Ask) -> list[int]:
        """Once an answer is another than it was, which a tie can make it, nobody knows it."""
        answer, at = self.answers.get(tuple(ask.prompt), []), len(ask.output)
        drafts = answer[at : at + min(self.count, ask.most)]
        if not self.right:
            return [token ^ 1 for token in drafts]
        if list(ask.output) != answer[:at]:
            return []
        self.made[ask.sequence] = at, drafts
        return drafts

    def _look(self, ask: Ask) -> None:
        at, drafts = self.made.pop(ask.sequence, (0, []))
        came = ask.output[at : at + len(drafts)]
        same = [draft == token for draft, token in zip(drafts, came, strict=False)]
        self.drafted += len(drafts)
        self.kept += len(same) if all(same) else same.index(False)


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: list[float]  # of passes in which all rows decode
    outputs: dict[str, list[int]]

    @property
    def median(self) -> float:
        if len(self.seconds) < 2:
            raise BenchmarkRefused(f"{len(self.outputs)} rows never decoded together")
        return statistics.median(self.seconds)


def speculation_rows(
    engine: LoneEngine, setting: Setting, script: Script,
    mixes: Sequence[tuple[int, int]] = MIXES, drafts: Sequence[int] = DRAFTS,
) -> list[Row]:  # fmt: skip
    """For each (rows, adapters) and number of drafts. Raises BenchmarkRefused."""
    runner, found = engine.built.runner, list[Row]()
    assert isinstance(runner, ModelRunner)
    if setting.members > 1:
        raise BenchmarkRefused("passes of other numbers of drafts are captured on one GPU alone")
    for batch, adapters in mixes:
        runner.capture_drafts(drafts, rows=batch, adapted=adapters > 0)
    for batch, adapters in mixes:
        script.rows = batch
        plain = _plain(engine, setting, script, batch, adapters)
        found.append(_row(setting, batch, adapters, "plain", "pass", plain * 1e3, "ms"))
        for count in drafts:
            runner.draft_at_most(count, rows=batch)
            kept = _kept(engine, setting, script, count, batch, adapters)
            ratio = _verifying(engine, setting, script, count, batch, adapters) / plain
            op = f"{count} drafts"
            facts = [("pass", ratio * plain * 1e3, "ms"), ("over plain", ratio, "x")]
            facts += [("right drafts kept", kept, "share")]
            facts += [("break-even drafts kept", max(ratio - 1, 0.0), "drafts a pass")]
            if (chance := break_even(ratio, count)) is not None:
                facts.append(("break-even chance", chance, "share"))
            found += [_row(setting, batch, adapters, op, *fact) for fact in facts]
    return found


def break_even(ratio: float, drafts: int) -> float | None:
    """The chance of each draft at which passes that take ``ratio`` times as long bring as many
    tokens a second; None where even right drafts bring fewer."""
    if ratio > 1 + drafts:
        return None
    if ratio <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        tokens = sum(middle**i for i in range(drafts + 1))
        low, high = (middle, high) if tokens < ratio else (low, middle)
    return high


def _plain(
    engine: LoneEngine, setting: Setting, script: Script, batch: int, adapters: int
) -> float:
    """Seconds of a pass. The script learns the answers."""
    script.count = 0
    script.answers = {}
    warm(engine, adapters, setting.rank)
    run = _run(engine, setting, batch, adapters)
    for number in range(batch):
        prompt = engine.random_prompt(PROMPT, seed=number)
        script.answers[tuple(prompt)] = run.outputs[f"r{number}"]
    return run.median


def _kept(
    engine: LoneEngine, setting: Setting, script: Script, count: int, batch: int, adapters: int
) -> float:
    """The share of right drafts that passes kept."""
    script.count, script.right = count, True
    script.drafted = script.kept = 0
    _run(engine, setting, batch, adapters)
    kept = script.kept / max(script.drafted, 1)
    if kept < LEAST_KEPT:
        raise BenchmarkRefused(
            f"{batch} rows kept {kept:.0%} of {count} drafts that plain passes had drawn"
        )
    return kept


def _verifying(
    engine: LoneEngine, setting: Setting, script: Script, count: int, batch: int, adapters: int
) -> float:
    """Seconds of a pass."""
    script.count, script.right = count, False
    return _run(engine, setting, batch, adapters).median


def _run(engine: LoneEngine, setting: Setting, batch: int, adapters: int) -> _Run:
    requests, seconds = Requests(), list[float]()
    for number in range(batch):
        adapter = adapter_ref(number % adapters, setting.rank) if adapters else None
        engine.submit(f"r{number}", engine.random_prompt(PROMPT, seed=number), LONG, adapter)
    for took in engine.passes(requests):
        lengths = [len(tokens) for tokens in requests.outputs.values()]
        if len(lengths) == batch and min(lengths) > SETTLED and not requests.finished:
            seconds.append(took)
    return _Run(seconds, requests.outputs)


def _row(
    setting: Setting, batch: int, adapters: int, op: str, metric: str, value: float, unit: str
) -> Row:
    figure = Figure(
        bench="speculation", metric=metric, value=value, unit=unit, batch=batch,
        adapters=adapters, context=PROMPT, op=op,
    )  # fmt: skip
    return row(setting, figure)
