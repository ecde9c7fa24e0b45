"""Trains the demo's EAGLE-3 head from what its target said and thought.

The head is trained as it will be used: each batch is gone through several times, every time on
what it made the time before (Li et al., EAGLE-3, 2025).
"""

import random
from collections.abc import Sequence

import torch
import transformers
from torch import nn

from engine.demo.eagle_head import Head, turned
from engine.demo.progress import Progress
from engine.demo.scale import Allowance, Scale
from engine.demo.teacher import (
    Batch,
    Recording,
    batch_count,
    batches,
    columns,
    divergence,
    frequent,
)

_VOCABULARY = 16384  # tokens the head can say
_FADING = 0.8  # each turn counts so much of the one before
_RATE = 1e-3
_WARM_UP_STEPS, _WARM_UP = 20, 0.02  # at least, and of all


def train(
    target: transformers.LlamaForCausalLM,
    recordings: Sequence[Recording],
    scale: Scale,
    progress: Progress,
    allowance: Allowance,
) -> tuple[Head, torch.Tensor]:
    """The head, and the tokens it can say [N]. Where the target is. With ``allowance`` spent it
    is done: what it learns from a step fades with the steps and with the time."""
    shuffler = random.Random(0)  # noqa: S311 - an order of lessons, not a secret
    said = frequent(recordings, target.config.vocab_size, _VOCABULARY)
    often = frequent(recordings, target.config.vocab_size, scale.frequent)
    chance = torch.Generator().manual_seed(0)
    head = Head(target, said)
    table = target.model.embed_tokens.weight.detach().bfloat16()
    steps = scale.head_epochs * batch_count(recordings, scale.learning)
    warm_up = max(_WARM_UP_STEPS, steps * _WARM_UP)
    done = 0

    def gone() -> float:
        return max(done / steps, allowance.spent())

    optimiser = torch.optim.AdamW(
        head.parameters(), _RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm_up, 1 - gone())
    )
    for _ in range(scale.head_epochs):
        for batch in batches(recordings, scale.learning, shuffler):
            share = gone()
            if share >= 1:
                return head, said
            rows = table[columns(often, len(table), scale.others, chance).to(table.device)]
            depth = scale.depths[int(len(scale.depths) * share)]
            torch.autograd.backward(_loss(head, rows, batch, depth))
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            done += 1
            progress("Training the EAGLE-3 head", gone())
    return head, said


def _loss(head: Head, rows: torch.Tensor, batch: Batch, depth: int) -> torch.Tensor:
    """Position q has the token at q + 1 and says the one at q + 2, which the target said at q + 1.
    ``rows`` of the tokens that count. (The first positions, which nothing leads to in a later turn,
    are not among the real ones.)"""
    real = batch.real[:, 1:]
    with torch.autocast(rows.device.type, torch.bfloat16):
        wanted = (batch.final[:, 1:][real] @ rows.t()).float().softmax(-1)
        total, weight = torch.zeros((), device=rows.device), 0.0
        for turn, hidden in enumerate(turned(head, batch, depth)):
            loss = divergence(head.say(hidden[real], rows), wanted)
            total = total + _FADING**turn * loss
            weight += _FADING**turn
    return total / weight
