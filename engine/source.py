"""A model on its way in: the files it is read from, where it will compute, and what was read."""

import logging
from dataclasses import dataclass

import torch

from engine.checkpoint import Checkpoint
from engine.config import EngineConfig, HeadDtype
from engine.errors import ConfigError
from engine.images import ImageVectors
from engine.loading import Placement, Weights
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.models.tower import Tower
from engine.precision import choose_device, choose_dtype
from engine.seeing import Seeing
from engine.stored_weights import SIGHT
from engine.team.member import Member, device_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """What a model is read from, and where and how it will compute."""

    checkpoint: Checkpoint
    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, config: EngineConfig, member: int) -> "Source":
        """Raises ConfigError or CheckpointInvalid."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        checkpoint = Checkpoint(config.model)
        generation = checkpoint.json("generation_config.json")
        spec = ModelSpec.read(checkpoint.config, generation, stored=checkpoint.dtype)
        _check_length(config, spec)
        device = device_of(member, config, choose_device(config.device))
        choice = choose_dtype(config.dtype, spec, device)
        log.info("computing in %s on %s: %s", choice.dtype, device, choice.reason)
        return cls(checkpoint, spec, device, choice.dtype)


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Decoder
    weights: Weights
    images: ImageVectors | None


def load_model(config: EngineConfig, source: Source, member: Member) -> Loaded:
    narrow_head = config.head_dtype == HeadDtype.INT8
    shard = member.shard
    place = Placement(source.device, source.dtype, config.deterministic, narrow_head, shard)
    spec = source.spec if shard is None else shard.spec
    weights = Weights(source.checkpoint, spec, place)
    with torch.inference_mode():
        positions = config.max_model_len or spec.max_position
        model = Decoder(weights, positions=positions, group=member.group)
        images = _image_vectors(source.checkpoint, weights, member)
    weights.finish()
    if narrow_head:
        log.info("head in int8: %s", weights.narrow_head or "quantised in the checkpoint")
    return Loaded(model, weights, images)


def _image_vectors(checkpoint: Checkpoint, weights: Weights, member: Member) -> ImageVectors | None:
    """None where the model reads text alone, and on members that the lead shows what it saw."""
    seeing = Seeing.of(checkpoint.path)
    if seeing is None:
        return None
    if not member.leads:
        weights.pass_over(SIGHT)
        return None
    tower = Tower(weights, checkpoint.whole_config, seeing)
    return ImageVectors(tower, seeing, weights.place.device)


def _check_length(config: EngineConfig, spec: ModelSpec) -> None:
    if config.max_model_len is not None and config.max_model_len > spec.max_position:
        raise ConfigError(
            f"max_model_len={config.max_model_len} exceeds the model's own {spec.length_limit}"
        )
