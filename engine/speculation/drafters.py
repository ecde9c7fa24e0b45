"""Opens the checkpoint that drafts for a base, as ``--speculative-config`` says."""

from pathlib import Path

from engine.batch import BatchBuilder
from engine.checkpoint import Checkpoint
from engine.loading import Placement, Weights
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.speculation.draft_model import DraftModelProposer
from engine.speculation.eagle import EagleProposer
from engine.speculation.eagle_head import EagleHead, Target
from engine.speculation.settings import Method, SpeculationSettings
from engine.speculation.vocabularies import require_same_tokens
from engine.speculation.watcher import Watcher


def open_drafter(
    settings: SpeculationSettings,
    base: Path,
    model: Decoder,
    place: Placement,
    *,
    positions: int,
    page_tokens: int,
) -> Watcher | None:
    """None where a method has no model. ``base`` is where ``model`` came from; ``positions`` what
    its sequences may have. Raises CheckpointInvalid."""
    if settings.model is None:
        return None
    checkpoint = Checkpoint(settings.model)
    # Drafts need not come out the same whoever shares the batch: what is kept of them does.
    place = Placement(place.device, place.dtype)
    builder = BatchBuilder(page_tokens, place.device)
    if settings.method is Method.EAGLE3:
        target = Target(model.spec, model.embedding, positions)
        return EagleProposer(
            EagleHead(checkpoint, target, place),
            builder,
            dtype=place.dtype,
            device=place.device,
            page_tokens=page_tokens,
        )
    spec = ModelSpec.read(checkpoint.config, checkpoint.json("generation_config.json"))
    require_same_tokens(checkpoint.path, spec, base, model.spec)
    weights = Weights(checkpoint, spec, place)
    drafting = Decoder(weights, positions=min(positions, spec.max_position))
    weights.finish()
    return DraftModelProposer(
        drafting,
        builder,
        dtype=place.dtype,
        device=place.device,
        page_tokens=page_tokens,
        vocabulary=model.spec.vocab_size,
    )
