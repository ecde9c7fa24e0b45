"""What one member of a team holds of a model and of its adapters.

Of ``size`` members, each has an equal part of the heads, of the MLP's channels and of the
vocabulary. A linear that makes them (q, k, v, gate, up) is cut by its outputs; one that reads them
(o, down) by its inputs, so that its results are addends of the layer's, one from each member.
Adapters are cut alike: of a linear cut by outputs, B; of one cut by inputs, A, whose B makes
addends of what the adapter adds, and one sum over the members adds up both.

Key-value heads that are fewer than members are held by several of them. Which channels of an MLP
are a member's is free, as nothing mixes them: where the groups of its down projection are in an
order of their own (act-order), a member has the channels of consecutive groups, gate and up make
them in that order, and nobody permutes anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from adapters.pack import Factor, PackedAdapter
from engine.models.spec import ModelSpec

CUT_BY_INPUTS = ("o_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Shard:
    """Raises ConfigError when the model cannot be cut so."""

    member: int
    size: int
    whole: ModelSpec
    _channels: dict[int, torch.Tensor] = field(default_factory=dict)  # by layer, once it is loaded

    def __post_init__(self) -> None:
        self.whole.part(self.size)  # or refuses

    @property
    def spec(self) -> ModelSpec:
        """Of a member: its heads and channels, and the whole vocabulary. Raises ConfigError."""
        return self.whole.part(self.size)

    @property
    def leads(self) -> bool:
        return self.member == 0

    @property
    def tokens(self) -> int:
        """Of the vocabulary, filled up to whole shares."""
        return -(-self.whole.vocab_size // self.size)

    @property
    def vocabulary(self) -> torch.Tensor:
        """[tokens] the member's; past the last there is, the last again."""
        first = self.member * self.tokens
        last = self.whole.vocab_size - 1
        return torch.arange(first, first + self.tokens).clamp_(max=last)

    def order(self, layer: int, groups: torch.Tensor | None) -> None:
        """Take channels of a layer's MLP in the order of ``groups``, one for each; None: as they
        are."""
        order = torch.arange(self.whole.intermediate_size)
        if groups is not None:
            order = torch.argsort(groups.long().cpu(), stable=True)
        each = self.spec.intermediate_size
        self._channels[layer] = order[self.member * each : (self.member + 1) * each]

    def outputs(self, layer: int, module: str) -> torch.Tensor:
        """Which of a linear's outputs the member makes, of one that is cut by them."""
        spec, own = self.whole, self.spec
        if module == "q_proj":
            return _run(self.member * own.query_size, own.query_size)
        if module in ("k_proj", "v_proj"):
            head = self.member * spec.num_kv_heads // self.size
            return _run(head * spec.head_dim, own.kv_size)
        return self._channels[layer]

    def inputs(self, layer: int, module: str) -> torch.Tensor:
        """Which of a linear's inputs the member reads, of one that is cut by them."""
        return self.outputs(layer, "q_proj") if module == "o_proj" else self._channels[layer]

    def adapter(self, packed: PackedAdapter) -> PackedAdapter:
        """Its tables, which change embeddings and head, stay whole: the lead computes with them."""
        factors: Mapping[tuple[int, str], Factor] = {
            (layer, module): self._factor(layer, module, factor)
            for (layer, module), factor in packed.factors.items()
        }
        return replace(packed, factors=factors)

    def _factor(self, layer: int, module: str, factor: Factor) -> Factor:
        if module not in CUT_BY_INPUTS:
            outputs = self.outputs(layer, module)
            return Factor(
                a=factor.a,
                b=factor.b[outputs],
                lora_bias=_taken(factor.lora_bias, outputs),
                bias=_taken(factor.bias, outputs),
                magnitude=_taken(factor.magnitude, outputs),
                a_largest=factor.a_largest,
                b_largest=_taken(factor.b_largest, outputs),
            )
        return Factor(
            a=factor.a[:, self.inputs(layer, module)].contiguous(),
            b=factor.b,
            lora_bias=self._once(factor.lora_bias),
            bias=self._once(factor.bias),
            magnitude=factor.magnitude,  # a factor of each addend
            a_largest=factor.a_largest,  # of whole rows: a member's part is coded as the whole is
            b_largest=factor.b_largest,
        )

    def _once(self, vector: torch.Tensor | None) -> torch.Tensor | None:
        """What is added to a sum over the members, added by one of them."""
        return vector if vector is None or self.leads else torch.zeros_like(vector)


def _run(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count)


def _taken(vector: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    return None if vector is None else vector[index]
