"""Whether an engine computes what its checkpoint says, asked before its speed is reported.

Prompts of several adapters and of the base go through the engine together; the log-probabilities
it reports for the twenty likeliest tokens, while prefilling and while decoding, are compared with
those of the dequantised weights in float32. Where pages hold 8 bits, the definition rounds too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
TOP, PROMPT, DECODED = 20, 48, 8


@dataclass(frozen=True, slots=True)
class Agreement:
    compared: int  # log-probabilities
    worst: float  # difference

    def __str__(self) -> str:
        return f"{self.compared} log-probabilities within {self.worst:.4f} of float32"


@dataclass(frozen=True, slots=True)
class Trial:
    """Sequences that went through an engine together, and what the definition says of them."""

    refs: Sequence[AdapterRef | None]
    sequences: Sequence[list[int]]  # prompt and drawn tokens
    outputs: Sequence[Sequence[Output]]
    reference: Sequence[torch.Tensor]  # [T, V] logits each


def check(engine: LoneEngine, model: Path, *, rank: int) -> Agreement:
    """Raises BenchmarkRefused when any log-probability is off by more than the tolerance."""
    refs = [None, *(adapter_ref(i, rank) for i in range(3))]
    found = agreement(trial(engine, model, refs))
    if found.worst > TOLERANCE:
        raise BenchmarkRefused(f"a log-probability differs from float32 by {found.worst:.3f}")
    return found


def trial(engine: LoneEngine, model: Path, refs: Sequence[AdapterRef | None]) -> Trial:
    """One sequence for each of ``refs``, all at once, then the same by the definition."""
    prompts = [engine.random_prompt(PROMPT + 7 * (i % 4), seed=1000 + i) for i in range(len(refs))]
    outputs = _run(engine, prompts, refs)
    sequences = [
        [*prompt, *(token for output in told for token in output.tokens)]
        for prompt, told in zip(prompts, outputs, strict=True)
    ]
    packed = [None if ref is None else engine.adapter(ref.digest) for ref in refs]
    reference = Reference(
        Checkpoint(str(model)),
        engine.device,
        narrow=engine.narrow,
        narrow_head=engine.narrow_head,
    )
    return Trial(refs, sequences, outputs, reference.logits(sequences, packed))


def agreement(trial: Trial) -> Agreement:
    """Of the twenty likeliest tokens, at every position of prompts and of what was decoded."""
    found = Agreement(0, 0.0)
    for told, logits in zip(trial.outputs, trial.reference, strict=True):
        found = _compare(found, _reported(told), logits.log_softmax(-1))
    return found


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
    worst, compared = so_far.worst, so_far.compared
    if len(reported) < expected.shape[0] - 1:
        raise BenchmarkRefused(f"{len(reported)} positions reported of {expected.shape[0] - 1}")
    for fact, row in zip(reported, expected, strict=False):
        tokens = torch.tensor([token for token, _ in fact.top], device=row.device)
        values = torch.tensor([value for _, value in fact.top], device=row.device)
        worst = max(worst, float((row[tokens] - values).abs().max()))
        compared += len(fact.top)
    return Agreement(compared, worst)
