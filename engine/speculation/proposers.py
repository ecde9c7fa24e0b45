"""Makes the proposer that the settings ask for.

In a team it is the lead's alone: every member has the whole residual stream, and drafts are tokens
that the lead tells the others with the pass that verifies them. So a drafter is never cut.
"""

from pathlib import Path

import torch

from engine.batch import BatchBuilder
from engine.checkpoint import Checkpoint
from engine.config import EngineConfig
from engine.errors import CheckpointInvalid
from engine.layers.embedding import Embedding
from engine.loading import Placement, Weights
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.speculation.draft_model import DraftModelProposer
from engine.speculation.eagle import EagleProposer
from engine.speculation.eagle_head import EagleHead, Target
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Proposer
from engine.speculation.settings import FLAG, Method, SpeculationSettings
from engine.speculation.vocabularies import require_same_tokens
from engine.speculation.watcher import Watcher


def make_proposer(
    config: EngineConfig, model: Decoder, place: Placement
) -> tuple[Proposer | None, Watcher | None]:
    """The second where it watches passes too. Raises CheckpointInvalid."""
    settings = config.speculation
    if settings is None:
        return None, None
    if settings.model is None:
        return NgramProposer(
            tokens=settings.tokens,
            lookup_min=settings.lookup_min,
            lookup_max=settings.lookup_max,
        ), None
    try:
        with torch.inference_mode():
            drafter = _drafter(config, settings.model, settings, model, place)
    except CheckpointInvalid as error:
        raise CheckpointInvalid(f"{FLAG}: {error}") from error
    return drafter, drafter


def _drafter(
    config: EngineConfig,
    path: str,
    settings: SpeculationSettings,
    model: Decoder,
    place: Placement,
) -> Watcher:
    checkpoint, base = Checkpoint(path), model.spec
    builder = BatchBuilder(config.page_tokens, place.device)
    positions = config.max_model_len or base.max_position
    # Drafts may depend on who shares the batch: what is kept of them does not.
    cut, place = place.shard is not None, Placement(place.device, place.dtype)
    if settings.method is Method.EAGLE3:

        def whole() -> Weights:
            return Weights(Checkpoint(config.model), base, place)

        def embedding() -> Embedding:
            return whole().embedding() if cut else model.embedding

        target = Target(base, embedding, lambda: whole().rows(), positions)
        head = EagleHead(checkpoint, target, place)
        return EagleProposer(
            head,
            builder,
            dtype=place.dtype,
            device=place.device,
            page_tokens=config.page_tokens,
        )
    spec = ModelSpec.read(checkpoint.config, checkpoint.json("generation_config.json"))
    require_same_tokens(checkpoint.path, spec, Path(config.model), base)
    weights = Weights(checkpoint, spec, place)
    drafting = Decoder(weights, positions=min(positions, spec.max_position))
    weights.finish()
    return DraftModelProposer(
        drafting,
        builder,
        dtype=place.dtype,
        device=place.device,
        page_tokens=config.page_tokens,
        vocabulary=base.vocab_size,
    )
