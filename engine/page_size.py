"""How large a page is and how many pages things take. Torch-free: engine and plan both ask here.

A page holds ``page_tokens`` tokens of K and V for all layers. Real models' pages hold nothing
else; a page of a very small model is made larger, so that any adapter block fits in it. Sizes are
in elements of the compute dtype, of ``item`` bytes, also where K and V take 8 bits: adapters lie in
the same pages.
"""

import math

from engine.models.spec import ModelSpec
from engine.placement import (
    A_ROWS,
    B_ROWS,
    SITES,
    UNIT,
    blocks_of_a,
    blocks_of_b,
    padded_inputs,
    place,
    round_up,
)

ROOMY_RANK = 64  # a B block of at least this rank fits in any page
ITEM, MAGNITUDE = 2, 4  # bytes of a number, of the magnitude of a narrow vector
GRAPH_BYTES = 512 << 20  # what captured decode passes keep for themselves, on CUDA


def page_elements(
    spec: ModelSpec, page_tokens: int, *, item: int = ITEM, narrow: bool = False
) -> int:
    """Elements of one page: whole units, and whole tiles of K or V of one head.

    ``narrow``: K and V take 8 bits, and 32 for the magnitude of each head of a token.
    """
    widest = max(spec.hidden_size, spec.query_size, spec.intermediate_size)
    blocks = max(A_ROWS * padded_inputs(widest), B_ROWS * ROOMY_RANK)
    whole = math.lcm(UNIT, page_tokens * spec.head_dim)
    kv = spec.kv_elements(page_tokens)
    if narrow:
        kv = -(-(kv + MAGNITUDE * kv // spec.head_dim) // item)
    return round_up(max(kv, blocks), whole)


def pages_of_tokens(tokens: int, page_tokens: int) -> int:
    """Pages that one sequence of so many tokens takes."""
    return -(-tokens // page_tokens)


def adapter_pages(
    spec: ModelSpec, rank: int, elements: int, *, item: int = ITEM, narrow: bool = False
) -> int:
    """Pages of ``elements`` that an adapter of one rank on all seven linears takes.

    ``narrow``: in 8 bits. Raises BlockTooLarge.
    """
    each = item if narrow else 1
    layer: list[int] = []
    for modules in SITES.values():
        for module in modules:
            inputs, outputs = linear_size(spec, module)
            blocks = blocks_of_a(rank, inputs, each) + blocks_of_b(outputs, rank, each)
            layer += [block.elements for block in blocks]
    return place(layer * spec.num_layers, elements)[1]


def linear_size(spec: ModelSpec, module: str) -> tuple[int, int]:
    """(inputs, outputs) of a linear of every layer."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    return {
        "q_proj": (hidden, spec.query_size),
        "k_proj": (hidden, spec.kv_size),
        "v_proj": (hidden, spec.kv_size),
        "o_proj": (spec.query_size, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }[module]
