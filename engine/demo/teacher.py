"""The target as a teacher: what it thought while it said what speculators learn from.

Letters: T tokens of a conversation, H the target's hidden size, B conversations of a batch.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import transformers
from torch.nn import functional

from engine.demo.own_words import Said

_BATCH = 8
_SYSTEM = 24  # the first tokens are the same everywhere: nothing to learn there


@dataclass(frozen=True, slots=True)
class Recording:
    tokens: torch.Tensor  # [T] int64
    features: torch.Tensor  # [T, layers * H] bfloat16, the residual stream as it enters them
    final: torch.Tensor  # [T, H] bfloat16, what the head reads


@dataclass(frozen=True, slots=True)
class Batch:
    """Recordings padded at the end, where causal attention hides it from every real token."""

    tokens: torch.Tensor  # [B, T]
    features: torch.Tensor  # [B, T, layers * H]
    final: torch.Tensor  # [B, T, H]
    real: torch.Tensor  # [B, T] bool: neither padding nor the common beginning


@torch.inference_mode()
def record(
    model: transformers.LlamaForCausalLM,
    said: Sequence[Said],
    layers: Sequence[int],
    progress: Callable[[float], None],
) -> list[Recording]:
    """In order of length. Layer L of ``layers`` is what enters it; 0 are the embeddings."""
    ordered, found = sorted(said, key=len), []
    for at in range(0, len(ordered), _BATCH):
        part = ordered[at : at + _BATCH]
        rows = [torch.tensor(tokens) for tokens in part]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        states = model.model(input_ids=padded, output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in layers], -1)
        for row, tokens in enumerate(rows):
            kept = features[row, : len(tokens)].clone(), states[-1][row, : len(tokens)].clone()
            found.append(Recording(tokens, *kept))
        progress((at + len(part)) / len(ordered))
    return found


def batches(recordings: Sequence[Recording], shuffler: random.Random) -> Iterator[Batch]:
    """One epoch. Recordings of like length are together, so that little is padding."""
    starts = list(range(0, len(recordings), _BATCH))
    shuffler.shuffle(starts)
    for start in starts:
        yield _padded(recordings[start : start + _BATCH])


def batch_count(recordings: Sequence[Recording]) -> int:
    return -(-len(recordings) // _BATCH)


def frequent(recordings: Sequence[Recording], vocabulary: int, size: int) -> torch.Tensor:
    """[size] the tokens said most often, in order of their ids; rarer ids are lower first."""
    counts = torch.bincount(torch.cat([r.tokens for r in recordings]), minlength=vocabulary)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def divergence(student: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the student's logits [N, V] against the teacher's probabilities."""
    return functional.cross_entropy(student.float(), wanted)


def _padded(recordings: Sequence[Recording]) -> Batch:
    def pad(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)

    real = pad([torch.ones(len(r.tokens), dtype=torch.bool) for r in recordings])
    real[:, :_SYSTEM] = False
    return Batch(
        pad([r.tokens for r in recordings]),
        pad([r.features for r in recordings]),
        pad([r.final for r in recordings]),
        real,
    )
