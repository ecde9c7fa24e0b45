"""The target as a teacher: what it thought while it said what speculators learn from.

Letters: T tokens of a conversation, H the target's hidden size, B conversations of a batch.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from engine.demo.own_words import Said

_ROLE = 3  # tokens that begin a turn: the mark, who speaks, a new line


@dataclass(frozen=True, slots=True)
class Recording:
    tokens: torch.Tensor  # [T] int64
    features: torch.Tensor  # [T, layers * H] bfloat16, the residual stream as it enters them
    final: torch.Tensor  # [T, H] bfloat16, what the head reads
    learned_from: int  # drafts are made for answers: what was asked teaches nothing


@dataclass(frozen=True, slots=True)
class Batch:
    """Recordings padded at the end, where causal attention hides it from every real token."""

    tokens: torch.Tensor  # [B, T]
    features: torch.Tensor  # [B, T, layers * H]
    final: torch.Tensor  # [B, T, H]
    real: torch.Tensor  # [B, T] bool: of answers


@torch.inference_mode()
def record(
    model: transformers.LlamaForCausalLM,
    said: Sequence[Said],
    layers: Sequence[int],
    opens: int,
    progress: Callable[[float], None],
    *,
    together: int = 8,
) -> list[Recording]:
    """In order of length, where the model is. Layer L of ``layers`` is what enters it; 0 are the
    embeddings. ``opens`` is the token that begins a turn. ``together``: conversations a pass."""
    ordered, found = sorted(said, key=len), []
    for at in range(0, len(ordered), together):
        part = ordered[at : at + together]
        rows = [torch.tensor(tokens, device=model.device) for tokens in part]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        states = model.model(input_ids=padded, output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in layers], -1)
        for row, tokens in enumerate(rows):
            kept = features[row, : len(tokens)].clone(), states[-1][row, : len(tokens)].clone()
            turns = [place for place, token in enumerate(part[row]) if token == opens]
            answer = turns[-1] + _ROLE if turns else 0
            found.append(Recording(tokens, *kept, learned_from=answer))
        progress((at + len(part)) / len(ordered))
    return found


def batches(
    recordings: Sequence[Recording], together: int, shuffler: random.Random
) -> Iterator[Batch]:
    """One epoch. Recordings of like length are together, so that little is padding."""
    starts = list(range(0, len(recordings), together))
    shuffler.shuffle(starts)
    for start in starts:
        yield padded(recordings[start : start + together])


def batch_count(recordings: Sequence[Recording], together: int) -> int:
    return -(-len(recordings) // together)


def frequent(recordings: Sequence[Recording], vocabulary: int, size: int) -> torch.Tensor:
    """[size] the tokens said most often, in order of their ids; rarer ids are lower first."""
    said = torch.cat([recording.tokens for recording in recordings]).cpu()
    counts = torch.bincount(said, minlength=vocabulary)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def columns(often: torch.Tensor, among: int, others: int, chance: torch.Generator) -> torch.Tensor:
    """Of ``among`` tokens those said often and ``others`` by chance, which keep the rest in their
    place: what one batch is measured on."""
    kept = torch.zeros(among, dtype=torch.bool)
    kept[often] = kept[torch.randint(among, (others,), generator=chance)] = True
    return kept.nonzero()[:, 0]


class _Divergence(torch.autograd.Function):
    """In few passes over memory: what torch does of itself takes longer than all products."""

    @staticmethod
    def forward(ctx: Any, student: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = student.float()
        whole = logits.logsumexp(1)
        ctx.save_for_backward(logits.sub_(whole[:, None]), wanted)
        ctx.dtype = student.dtype
        return -(logits * wanted).sum() / len(wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, wanted = ctx.saved_tensors
        slope = logits.exp().sub_(wanted).mul_(gradients[0] / len(wanted))
        return slope.to(ctx.dtype), None


def divergence(student: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the student's logits [N, V] against the teacher's probabilities."""
    loss: torch.Tensor = _Divergence.apply(student, wanted)  # type: ignore[no-untyped-call]
    return loss


def padded(recordings: Sequence[Recording]) -> Batch:
    def pad(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)

    real = pad(
        [torch.arange(len(r.tokens), device=r.tokens.device) >= r.learned_from for r in recordings]
    )
    return Batch(
        pad([r.tokens for r in recordings]),
        pad([r.features for r in recordings]),
        pad([r.final for r in recordings]),
        real,
    )
