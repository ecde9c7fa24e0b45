"""Whether an engine computes what its checkpoint says, asked before its speed is reported.

Prompts of several adapters and of the base go through the engine together; the log-probabilities
it reports for the twenty likeliest tokens, while prefilling and while decoding, are compared with
those of the dequantised weights in float32.

Where adapters hold 8 bits, the definition has what is left of them. Where pages or the head do, it
rounds too. What float16 makes all but a tie may then be rounded the other way, by a whole step of 8
bits, so no bound on one value says much. Instead the engine has to be much nearer to its definition
than that is to the one which rounds nothing. In float32 with noise of float16 the share is 0.35 (of
the root mean square, a small model of random weights; 0.66 was seen of 32 layers), with that of
bfloat16 0.74, and 1 for what does not round at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.bench.alone import BenchmarkRefused, LoneEngine, adapter_ref
from engine.bench.reference import Reference
from engine.checkpoint import Checkpoint
from engine.core import Heard
from engine.protocol import (
    AdapterRef,
    Output,
    Refused,
    Sampling,
    Step,
    Submit,
    TokenLogprobs,
)

TOLERANCE = 0.1  # of a log-probability
ROUNDED_SHARE = {"float32": 0.6, "float16": 0.8, "bfloat16": 0.95}  # of what 8 bits change
TOP, PROMPT, DECODED = 20, 48, 8


@dataclass(frozen=True, slots=True)
class Agreement:
    compared: int  # log-probabilities
    worst: float  # difference
    squares: float = 0.0  # of differences, summed
    rounding: float = 0.0  # root mean square of what 8 bits change by definition; 0: nothing
    dtype: str = "float32"  # the engine computes in

    @property
    def share(self) -> float:
        """Root mean square of the differences, of what 8 bits change."""
        return math.sqrt(self.squares / self.compared) / self.rounding if self.rounding else 0.0

    @property
    def refusal(self) -> str | None:
        """Why this is not right."""
        close = self.worst <= TOLERANCE
        if self.rounding and self.share > ROUNDED_SHARE[self.dtype]:
            if close and self.dtype == "bfloat16":
                return None  # its own noise may be more than what 8 bits change
            return f"log-probabilities differ by {self.share:.2f} of what 8 bits change"
        if not self.rounding and not close:
            return f"a log-probability differs from float32 by {self.worst:.3f}"
        return None

    def __str__(self) -> str:
        text = f"{self.compared} log-probabilities within {self.worst:.4f} of float32"
        return f"{text}, {self.share:.2f} of what 8 bits change" if self.rounding else text


@dataclass(frozen=True, slots=True)
class Trial:
    """Sequences that went through an engine together, and what the definition says of them."""

    refs: Sequence[AdapterRef | None]
    sequences: Sequence[list[int]]  # prompt and drawn tokens
    outputs: Sequence[Sequence[Output]]
    reference: Sequence[torch.Tensor]  # [T, V] logits each
    unrounded: Sequence[torch.Tensor] | None  # likewise, where the reference rounds
    dtype: str  # the engine computes in


def check(engine: LoneEngine, model: Path, *, rank: int) -> Agreement:
    """Raises BenchmarkRefused when log-probabilities are off by more than the tolerance."""
    refs = [None, *(adapter_ref(i, rank) for i in range(3))]
    found = agreement(trial(engine, model, refs))
    if found.refusal:
        raise BenchmarkRefused(found.refusal)
    return found


def trial(engine: LoneEngine, model: Path, refs: Sequence[AdapterRef | None]) -> Trial:
    """One sequence for each of ``refs``, all at once, then the same by the definition."""
    prompts = [engine.random_prompt(PROMPT + 7 * (i % 4), seed=1000 + i) for i in range(len(refs))]
    outputs = _run(engine, prompts, refs)
    sequences = [
        [*prompt, *(token for output in told for token in output.tokens)]
        for prompt, told in zip(prompts, outputs, strict=True)
    ]
    packed = [None if ref is None else engine.kept(ref.digest) for ref in refs]

    def define(*, narrow: bool, narrow_head: bool) -> list[torch.Tensor]:
        of = Checkpoint(str(model))
        reference = Reference(of, engine.device, narrow=narrow, narrow_head=narrow_head)
        return reference.logits(sequences, packed)

    defined = define(narrow=engine.narrow, narrow_head=engine.narrow_head)
    rounds = engine.narrow or engine.narrow_head
    unrounded = define(narrow=False, narrow_head=False) if rounds else None
    return Trial(refs, sequences, outputs, defined, unrounded, engine.built.base.dtype)


def agreement(trial: Trial) -> Agreement:
    """Of the twenty likeliest tokens, at every position of prompts and of what was decoded."""
    found = Agreement(0, 0.0, dtype=trial.dtype)
    for told, logits in zip(trial.outputs, trial.reference, strict=True):
        found = _compare(found, _reported(told), logits.log_softmax(-1))
    if trial.unrounded is None:
        return found
    squares = 0.0
    for told, one, other in zip(trial.outputs, trial.reference, trial.unrounded, strict=True):
        apart = one.log_softmax(-1) - other.log_softmax(-1)
        for fact, row in zip(_reported(told), apart, strict=False):
            tokens = torch.tensor([token for token, _ in fact.top], device=row.device)
            squares += float(row[tokens].square().sum())
    return replace(found, rounding=math.sqrt(squares / found.compared))


def _run(
    engine: LoneEngine, prompts: Sequence[list[int]], refs: Sequence[AdapterRef | None]
) -> list[list[Output]]:
    for i, (prompt, ref) in enumerate(zip(prompts, refs, strict=True)):
        submit = Submit(
            f"{i}", "check", prompt, DECODED, sampling=Sampling(temperature=0.0), adapter=ref,
            ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP,
        )  # fmt: skip
        engine.core.inbox.put(Heard(0, submit))
    outputs: list[list[Output]] = [[] for _ in prompts]
    for _ in range(10_000):
        engine.core.step()
        for said in engine.core.outbox.take():
            if isinstance(said.message, Refused):
                raise BenchmarkRefused(said.message.detail)
            if isinstance(said.message, Step):
                for output in said.message.outputs:
                    outputs[int(output.request)].append(output)
        if not engine.core.book:
            return outputs
    raise BenchmarkRefused("the engine did not finish the check")


def _reported(outputs: Sequence[Output]) -> list[TokenLogprobs]:
    """For positions 1, 2, ... of a sequence."""
    prompt = [fact for output in outputs for fact in output.prompt_logprobs or ()]
    return prompt + [fact for output in outputs for fact in output.logprobs or ()]


def _compare(
    so_far: Agreement, reported: Sequence[TokenLogprobs], expected: torch.Tensor
) -> Agreement:
    """``expected`` [T, V]: row p predicts position p + 1, which ``reported[p]`` is about."""
    worst, compared, squares = so_far.worst, so_far.compared, so_far.squares
    if len(reported) < expected.shape[0] - 1:
        raise BenchmarkRefused(f"{len(reported)} positions reported of {expected.shape[0] - 1}")
    for fact, row in zip(reported, expected, strict=False):
        tokens = torch.tensor([token for token, _ in fact.top], device=row.device)
        values = torch.tensor([value for _, value in fact.top], device=row.device)
        apart = row[tokens] - values
        worst = max(worst, float(apart.abs().max()))
        squares += float(apart.square().sum())
        compared += len(fact.top)
    return replace(so_far, compared=compared, worst=worst, squares=squares)
