"""From logits to tokens, and to what was asked about their probabilities.

Per row and in this order: penalties, logit_bias, tokens that are not allowed, the ends of bad
words, barred tokens (of a grammar's mask, where there is one, which has the others in it); then
log-probabilities are taken; then temperature, top_k, top_p, min_p and one draw
(``kernels.sample``), whose random number depends on (seed, position) alone.

    repetition  a token of prompt or output: its logit / p where positive, * p where negative
    frequency   minus p for each time the output has the token
    presence    minus p once if the output has the token

The last token of an output may still be on the device (``Draw.position`` exceeds the output that
is known by one): it is counted there. A row with a logit that is not finite fails alone: its draw
is discarded and named in ``failed``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from engine.protocol import Sampling, TokenLogprobs
from engine.staging import send
from engine.step import Chunk, Draw, Drawn, Masks
from kernels.mask_tokens import mask_tokens
from kernels.philox import uniforms
from kernels.sample import sample

NOT_FINITE = "the model's logits are not finite"
ANY = Draw(sampling=Sampling(temperature=0.0), seed=0, position=0, prompt=(), output=())
PENALISED_ROWS = 16  # at a time: each takes two floats per token of the vocabulary


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks for the draws of a pass."""

    rows: npt.NDArray[np.int32]  # [B] of each draw, its row of bits; -1: none
    bits: npt.NDArray[np.int32]  # [M, W]

    @classmethod
    def of(
        cls, masks: Masks, drawing: Sequence[Chunk], queries: int | None = None
    ) -> "TokenMasks | None":
        """None when no mask is among theirs. ``queries``: rows of each, where they are padded."""
        found = list[int]()
        for chunk in drawing:
            first = masks.rows.get(chunk.sequence)
            places = range(len(chunk.draws))
            found += [-1] * len(places) if first is None else [first + place for place in places]
            found += [-1] * ((queries or 0) - len(places))
        rows = np.asarray(found, dtype=np.int32)
        return cls(rows, masks.bits) if (rows >= 0).any() else None


@dataclass(frozen=True, slots=True)
class Drawing:
    """Draws under way. ``read`` when the device has reached this point."""

    draws: Sequence[Draw]
    drawn: torch.Tensor  # [B] int64, on the device: some token where the logits were not finite
    tokens: torch.Tensor  # [B] int64, on the host; -1 there
    logprobs: "TopLogprobs | None"
    asked: dict[int, int]  # row -> its row in logprobs

    @classmethod
    def of(
        cls,
        logits: torch.Tensor,
        draws: Sequence[Draw],
        tokens: torch.Tensor,
        finite: torch.Tensor,
    ) -> "Drawing":
        """Begin to bring to the host what was drawn from logits [B, V], as adjusted."""
        outcome = torch.where(finite, tokens, -1).to("cpu", non_blocking=True)
        asked = [row for row, d in enumerate(draws) if d.logprobs is not None]
        if not asked:
            return cls(draws, tokens, outcome, None, {})
        most = max(draws[row].logprobs or 0 for row in asked)
        rows = send({"rows": np.asarray(asked)}, logits.device)["rows"]
        top = TopLogprobs.of(logits[rows], tokens[rows], most)
        return cls(draws, tokens, outcome, top, {row: i for i, row in enumerate(asked)})

    def read(self) -> list[Drawn]:
        facts = self.logprobs.read(self._wanted()) if self.logprobs is not None else []
        return [
            Drawn(token=token, logprobs=facts[self.asked[row]] if row in self.asked else None)
            if token >= 0
            else Drawn(failed=NOT_FINITE)
            for row, token in enumerate(self.tokens.tolist())
        ]

    def _wanted(self) -> list[int]:
        return [self.draws[row].logprobs or 0 for row in self.asked]


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The log-probability of chosen tokens and of the likeliest ones, on their way to the host."""

    own: torch.Tensor  # [B] float32
    values: torch.Tensor  # [B, k] float32, falling
    tokens: torch.Tensor  # [B, k] int64

    @classmethod
    def of(cls, logits: torch.Tensor, chosen: torch.Tensor, count: int) -> "TopLogprobs":
        """Of ``chosen`` [B] and of the ``count`` likeliest tokens of each row of logits [B, V]."""
        logprobs = logits.log_softmax(dim=-1)
        own = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1)
        values, tokens = logprobs.topk(min(count, logits.shape[1]), dim=1)
        return cls(*(found.to("cpu", non_blocking=True) for found in (own, values, tokens)))

    def read(self, wanted: Sequence[int]) -> list[TokenLogprobs]:
        """One per row, with as many alternatives as that row wants; barred tokens are none."""
        rows = zip(
            self.own.tolist(), self.values.tolist(), self.tokens.tolist(), wanted, strict=True
        )
        return [
            TokenLogprobs(own, _alternatives(tokens[:count], values[:count]))
            for own, values, tokens, count in rows
        ]


def _alternatives(tokens: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    pairs = zip(tokens, values, strict=True)
    return [(token, value) for token, value in pairs if value > -math.inf]


def draw(
    logits: torch.Tensor,
    draws: Sequence[Draw],
    last: torch.Tensor | None = None,
    masks: TokenMasks | None = None,
) -> Drawing:
    """Draw a token from each row of logits [B, V] float32, which is changed in place.

    ``last`` [B]: the last token of outputs whose last token is not known yet.
    """
    finite = logits.sum(dim=-1).isfinite()
    if not logits.is_cuda and not bool(finite.all()):
        logits.masked_fill_(~finite.unsqueeze(1), 0.0)
    adjust(logits, draws, last)
    if masks is not None:
        sent = send({"rows": masks.rows, "bits": masks.bits}, logits.device)
        mask_tokens(logits, sent["rows"], sent["bits"])
    return Drawing.of(logits, draws, _sample(logits, draws), finite)


def is_adjusted(draw: Draw) -> bool:
    """Whether the logits are changed before the draw."""
    wants = draw.sampling
    chooses = wants.logit_bias or wants.allowed or wants.bad_words
    return bool(draw.masked or draw.barred or chooses or _is_penalised(draw))


def padded(draws: Sequence[Draw], count: int) -> list[Draw]:
    """So many, those that are added change nothing."""
    return [*draws, *[ANY] * (count - len(draws))]


def adjust(logits: torch.Tensor, draws: Sequence[Draw], last: torch.Tensor | None) -> None:
    """Penalties, bias and barred tokens of the rows that have any, in place."""
    penalised = [row for row, d in enumerate(draws) if _is_penalised(d)]
    for at in range(0, len(penalised), PENALISED_ROWS):
        _penalise(logits, draws, penalised[at : at + PENALISED_ROWS], last)
    _bias(logits, draws)
    allowed = _Allowed.of(logits, draws)
    bar(logits, draws, last)
    if allowed is not None:
        allowed.restore(logits)


def _sample(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    wanted = [d.sampling for d in draws]
    facts = [(w.temperature, w.top_p, w.min_p) for w in wanted]
    uniform = np.zeros(len(draws), dtype=np.float32)
    warm = [row for row, w in enumerate(wanted) if w.temperature > 0]
    if warm:
        seeds, positions = zip(
            *((draws[row].seed, draws[row].position) for row in warm), strict=True
        )
        uniform[warm] = uniforms(seeds, positions).numpy()
    floats = np.concatenate([np.asarray(facts, dtype=np.float32).T, uniform[None]])
    sent = send(
        {
            "floats": floats.view(np.int32),
            "top_k": np.asarray([w.top_k for w in wanted], dtype=np.int32),
        },
        logits.device,
    )
    temperature, top_p, min_p, uniform_there = sent["floats"].view(torch.float32)
    return sample(logits, temperature, sent["top_k"], top_p, min_p, uniform_there)


def _is_penalised(draw: Draw) -> bool:
    wants = draw.sampling
    return bool(
        wants.repetition_penalty != 1.0 or wants.frequency_penalty or wants.presence_penalty
    )


def _penalise(
    logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int], last: torch.Tensor | None
) -> None:
    """``rows`` are few: each takes two floats per token of the vocabulary."""
    chosen = [draws[row] for row in rows]
    wanted = [d.sampling for d in chosen]
    there = send(
        {
            "rows": np.asarray(rows),
            **_ragged("output", [d.output for d in chosen]),
            **_ragged("prompt", [d.prompt for d in chosen]),
            "unread": np.asarray([d.position - len(d.output) for d in chosen]),
            "penalties": np.asarray(
                [[w.repetition_penalty, w.frequency_penalty, w.presence_penalty] for w in wanted],
                dtype=np.float32,
            ).view(np.int32),
        },
        logits.device,
    )
    counts = _counts(logits, there, "output")
    if last is not None:
        tokens, unread = last[there["rows"]], there["unread"].to(torch.float32)
        counts.scatter_add_(1, tokens.unsqueeze(1), unread.unsqueeze(1))
    repetition, frequency, presence = there["penalties"].view(torch.float32).t().unsqueeze(2)
    values = logits[there["rows"]]
    seen = (counts > 0) | (_counts(logits, there, "prompt") > 0)
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(seen, repeated, values)
    logits[there["rows"]] = values - frequency * counts - presence * (counts > 0)


def _ragged(
    name: str, lists: Sequence[Sequence[int]]
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Lists end to end, and which list each element is of."""
    lengths = [len(each) for each in lists]
    return {
        name: np.fromiter(chain.from_iterable(lists), np.int64, sum(lengths)),
        f"{name} of": np.repeat(np.arange(len(lists)), lengths),
    }


def _counts(logits: torch.Tensor, there: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """[rows, V] float32: how often each token occurs. Whole numbers, so any order adds alike."""
    counts = logits.new_zeros(len(there["rows"]), logits.shape[1])
    ones = torch.ones_like(there[name], dtype=torch.float32)
    return counts.index_put_((there[f"{name} of"], there[name]), ones, accumulate=True)


def _bias(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Every row's logit_bias, whose repeated tokens add up."""
    biases = [(row, *pair) for row, d in enumerate(draws) for pair in d.sampling.logit_bias]
    if not biases:
        return
    there = send(
        {
            "biased": np.asarray([b[:2] for b in biases], dtype=np.int64).reshape(-1, 2).T.copy(),
            "bias": np.asarray([b[2] for b in biases], dtype=np.float32).view(np.int32),
        },
        logits.device,
    )
    bias = there["bias"].view(torch.float32)
    logits.index_put_(tuple(there["biased"]), bias, accumulate=True)


def bar(logits: torch.Tensor, draws: Sequence[Draw], last: torch.Tensor | None) -> None:
    """Tokens that must not come next.

    Where an output's last token is not read yet, the device finds out whether a bad word would be
    completed.
    """
    barred = [(row, t) for row, d in enumerate(draws) if not d.masked for t in d.barred]
    unsure = list[tuple[int, int, int]]()  # row, token, and what the last token would have to be
    for row, d in enumerate(draws):
        for *before, token in d.sampling.bad_words:
            unread = d.position - len(d.output) if before else 0
            known = before[: len(before) - unread]
            if known and list(d.output[-len(known) :]) != known:
                continue
            if unread:
                unsure.append((row, token, before[-1]))
            else:
                barred.append((row, token))
    if not barred and not unsure:
        return
    there = send(
        {
            "barred": np.asarray(barred, dtype=np.int64).reshape(-1, 2).T.copy(),
            "unsure": np.asarray(unsure, dtype=np.int64).reshape(-1, 3).T.copy(),
        },
        logits.device,
    )
    if barred:
        logits.index_put_(tuple(there["barred"]), logits.new_full((), -math.inf))
    if unsure and last is not None:
        rows, tokens, wanted = there["unsure"]
        least = torch.where(last[rows] == wanted, -math.inf, 0.0)
        logits.index_put_((rows, tokens), least.to(logits.dtype), accumulate=True)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Rows in which few tokens may be drawn. One that is left none gets them all back."""

    rows: torch.Tensor  # [n] int64
    values: torch.Tensor  # [n, V], before any was barred

    @classmethod
    def of(cls, logits: torch.Tensor, draws: Sequence[Draw]) -> "_Allowed | None":
        """Takes the other tokens out of logits [B, V]. None where all rows allow any."""
        rows = [row for row, d in enumerate(draws) if d.sampling.allowed]
        if not rows:
            return None
        lists = [draws[row].sampling.allowed for row in rows]
        there = send({"rows": np.asarray(rows), **_ragged("allowed", lists)}, logits.device)
        may = logits.new_zeros(len(rows), logits.shape[1], dtype=torch.bool)
        may[there["allowed of"], there["allowed"]] = True
        values = logits[there["rows"]].masked_fill_(~may, -math.inf)
        logits[there["rows"]] = values
        return cls(there["rows"], values)

    def restore(self, logits: torch.Tensor) -> None:
        left = logits[self.rows]
        none = left.amax(dim=1, keepdim=True) == -math.inf
        logits[self.rows] = torch.where(none, self.values, left)
