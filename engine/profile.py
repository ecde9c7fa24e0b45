"""The largest forward pass an engine may be asked for, run once so that it can be measured."""

import torch

from engine.adapter_table import AdapterTable, SiteRow, site_shapes
from engine.config import EngineConfig
from engine.models.spec import ModelSpec
from engine.page_size import ROOMY_RANK
from engine.placement import A_ROWS
from engine.protocol import Sampling
from engine.step import Chunk, Draw, Runner, StepPlan


def run_largest_pass(
    runner: Runner, table: AdapterTable, spec: ModelSpec, config: EngineConfig
) -> None:
    """Full token budget over all sequences, each sampling, each row with an adapter.

    Every page is page 0 and every matrix lies at its start: the values mean nothing.
    """
    table.write(0, _entry(spec))
    longest = config.max_model_len or spec.max_position
    sequences = min(config.max_num_seqs, config.max_num_batched_tokens)
    lengths = [
        min(longest, config.max_num_batched_tokens // sequences + (i < extra))
        for extra in [config.max_num_batched_tokens % sequences]
        for i in range(sequences)
    ]
    sampling = Sampling(top_p=0.9, top_k=50)
    draw = Draw(sampling=sampling, seed=0, position=0, prompt=(), output=())
    chunks = [
        Chunk(
            sequence=number,
            tokens=[0] * length,
            start=0,
            pages=[0] * -(-length // config.page_tokens),
            adapter=0,
            draw=draw,
        )
        for number, length in enumerate(lengths)
    ]
    runner.launch(StepPlan(chunks)).wait()


def _entry(spec: ModelSpec) -> dict[str, SiteRow]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    L = spec.num_layers
    return {
        name: SiteRow(
            a_units=zeros(L, len(shape.slices), ROOMY_RANK // A_ROWS),
            b_units=zeros(L, shape.blocks),
            ranks=zeros(L, len(shape.slices)) + ROOMY_RANK,
        )
        for name, shape in site_shapes(spec).items()
    }
