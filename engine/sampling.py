"""From logits to tokens, and to what was asked about their probabilities.

Per row and in this order: penalties, logit_bias, barred tokens; then log-probabilities are taken;
then temperature, top_k, top_p, min_p and one draw (``kernels.sample``), whose random number
depends on (seed, position) alone.

    repetition  a token of prompt or output: its logit / p where positive, * p where negative
    frequency   minus p for each time the output has the token
    presence    minus p once if the output has the token

A row with a logit that is not finite fails alone: its draw is discarded and named in ``failed``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.protocol import TokenLogprobs
from engine.step import Draw, Drawn
from kernels.philox import uniforms
from kernels.sample import sample

NOT_FINITE = "the model's logits are not finite"


@dataclass(frozen=True, slots=True)
class Drawing:
    """Draws under way; ``read`` waits for the device."""

    draws: Sequence[Draw]
    tokens: torch.Tensor  # [B] int64
    finite: torch.Tensor  # [B] bool
    logprobs: "TopLogprobs | None"
    asked: dict[int, int]  # row -> its row in logprobs

    def read(self) -> list[Drawn]:
        tokens, finite = self.tokens.tolist(), self.finite.tolist()
        facts = self.logprobs.read(self._wanted()) if self.logprobs is not None else []
        return [
            Drawn(token=token, logprobs=facts[self.asked[row]] if row in self.asked else None)
            if fine
            else Drawn(failed=NOT_FINITE)
            for row, (token, fine) in enumerate(zip(tokens, finite, strict=True))
        ]

    def _wanted(self) -> list[int]:
        return [self.draws[row].logprobs or 0 for row in self.asked]


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The log-probability of chosen tokens and of the likeliest ones, on the device."""

    own: torch.Tensor  # [B] float32
    values: torch.Tensor  # [B, k] float32, falling
    tokens: torch.Tensor  # [B, k] int64

    @classmethod
    def of(cls, logits: torch.Tensor, chosen: torch.Tensor, count: int) -> "TopLogprobs":
        """Of ``chosen`` [B] and of the ``count`` likeliest tokens of each row of logits [B, V]."""
        logprobs = logits.log_softmax(dim=-1)
        own = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1)
        values, tokens = logprobs.topk(min(count, logits.shape[1]), dim=1)
        return cls(own, values, tokens)

    def read(self, wanted: Sequence[int]) -> list[TokenLogprobs]:
        """One per row, with as many alternatives as that row wants."""
        rows = zip(
            self.own.tolist(), self.values.tolist(), self.tokens.tolist(), wanted, strict=True
        )
        return [
            TokenLogprobs(own, list(zip(tokens[:count], values[:count], strict=True)))
            for own, values, tokens, count in rows
        ]


def draw(logits: torch.Tensor, draws: Sequence[Draw]) -> Drawing:
    """Draw a token from each row of logits [B, V] float32, which is changed in place."""
    finite = logits.sum(dim=-1).isfinite()
    if logits.is_cuda or not bool(finite.all()):
        logits.masked_fill_(~finite.unsqueeze(1), 0.0)
    _adjust(logits, draws)
    tokens = _sample(logits, draws)
    asked = [row for row, d in enumerate(draws) if d.logprobs is not None]
    if not asked:
        return Drawing(draws, tokens, finite, None, {})
    most = max(draws[row].logprobs or 0 for row in asked)
    rows = torch.tensor(asked, device=logits.device)
    top = TopLogprobs.of(logits[rows], tokens[rows], most)
    return Drawing(draws, tokens, finite, top, {row: i for i, row in enumerate(asked)})


def _sample(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    facts = torch.tensor(
        [(d.sampling.temperature, d.sampling.top_p, d.sampling.min_p) for d in draws],
        dtype=torch.float32,
    )
    top_k = torch.tensor([d.sampling.top_k for d in draws], dtype=torch.int32)
    uniform = uniforms([d.seed for d in draws], [d.position for d in draws])
    where = logits.device
    temperature, top_p, min_p = facts.to(where, non_blocking=True).t().contiguous()
    return sample(
        logits, temperature, top_k.to(where), top_p, min_p, uniform.to(where, non_blocking=True)
    )


def _adjust(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Penalties, bias and barred tokens of the rows that have any, in place."""
    for row, d in enumerate(draws):
        wants = d.sampling
        if wants.repetition_penalty != 1.0:
            _repetition(logits[row], (*d.prompt, *d.output), wants.repetition_penalty)
        if wants.frequency_penalty or wants.presence_penalty:
            _frequency(logits[row], d.output, wants.frequency_penalty, wants.presence_penalty)
        if wants.logit_bias:
            tokens, bias = zip(*wants.logit_bias, strict=True)
            _add(logits[row], tokens, bias)
        if d.barred:
            logits[row, _ids(d.barred, logits)] = float("-inf")


def _repetition(logits: torch.Tensor, seen: Sequence[int], penalty: float) -> None:
    tokens = _ids(sorted(set(seen)), logits)
    values = logits[tokens]
    logits[tokens] = torch.where(values > 0, values / penalty, values * penalty)


def _frequency(
    logits: torch.Tensor, output: Sequence[int], frequency: float, presence: float
) -> None:
    if counts := Counter(output):
        _add(logits, list(counts), [-frequency * n - presence for n in counts.values()])


def _add(logits: torch.Tensor, tokens: Sequence[int], values: Sequence[float]) -> None:
    """Repeated tokens add up, in order."""
    addend = torch.tensor(values, dtype=torch.float32, device=logits.device)
    logits.index_put_((_ids(tokens, logits),), addend, accumulate=True)


def _ids(tokens: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(tokens, dtype=torch.int64, device=like.device)
