"""Would an engine load this checkpoint? Found out by loading it, a layer at a time, on the CPU.

The loader itself says what is wrong, so this cannot disagree with a start; nothing is kept, so
that a model needs the memory of its largest layer.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import BaseUnreadable
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.inspection.finding import Finding, amount
from engine.layers.rotary import rotary_table
from engine.loading import Placement, Weights
from engine.models.decoder import Layer
from engine.models.registry import architecture_of
from engine.models.spec import ModelSpec
from engine.models.tower import Tower
from engine.seeing import Seeing

POSITIONS = 8  # of the table that layers are built with: nothing is computed
Progress = Callable[[str, float], None]
T = TypeVar("T")


def inspect_checkpoint(path: Path, progress: Progress) -> Finding:
    facts: dict[str, str | int] = {}
    reasons: list[str] = []
    try:
        checkpoint = Checkpoint(path)
        facts["architecture"] = architecture_of(checkpoint.whole_config)
        spec = ModelSpec.read(checkpoint.config, checkpoint.json("generation_config.json"))
        facts |= _shape(spec)
        weights = Weights(checkpoint, spec, Placement(torch.device("cpu"), torch.float16))
        with torch.inference_mode():
            reasons += _load(checkpoint, weights, progress)
        facts |= _stored(checkpoint, weights)
        facts["fingerprint"] = BaseSpec.from_checkpoint(path).fingerprint
    except (CheckpointInvalid, BaseUnreadable, ValueError) as error:
        reasons.append(str(error))
    reasons += _text_problems(path)
    return Finding(
        kind="checkpoint",
        path=str(path),
        facts=facts,
        reasons=reasons,
        warnings=list(_warnings(path)),
    )


def _load(checkpoint: Checkpoint, weights: Weights, progress: Progress) -> list[str]:
    """Why not: a reason for each part that cannot be loaded."""
    spec, reasons = weights.spec, list[str]()
    table = rotary_table(spec.rope, spec.head_dim, POSITIONS)

    def attempt(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except CheckpointInvalid as error:
            reasons.append(str(error))
            return None

    embedding = attempt(weights.embedding)
    for number in range(spec.num_layers):
        progress("Loading", number / spec.num_layers)
        attempt(lambda number=number: Layer(weights, number, table))  # type: ignore[misc]
    attempt(lambda: weights.norm("model.norm"))
    if embedding is not None:
        attempt(lambda: weights.head(embedding))
    seeing = attempt(lambda: Seeing.of(checkpoint.path))
    if seeing is not None:
        attempt(lambda: Tower(weights, checkpoint.whole_config, seeing))
    if not reasons:
        attempt(weights.finish)
    progress("Loading", 1.0)
    return reasons


def _shape(spec: ModelSpec) -> dict[str, str | int]:
    heads = f"{spec.num_heads} ({spec.num_kv_heads} of keys and values)"
    return {
        "layers": spec.num_layers,
        "hidden size": spec.hidden_size,
        "heads": heads,
        "vocabulary": spec.vocab_size,
        "context": spec.max_position,
        "head": "tied to the embeddings" if spec.tied_head else "its own",
    }


def _stored(checkpoint: Checkpoint, weights: Weights) -> dict[str, str | int]:
    sizes = {"F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1}
    total = 0
    for tensor in checkpoint.tensors.values():
        count = sizes.get(tensor.dtype, 1)
        for side in tensor.shape:
            count *= side
        total += count
    return {
        "quantisation": _quantisation(checkpoint, weights),
        "tensors": len(checkpoint.tensors),
        "size": amount(total),
    }


def _quantisation(checkpoint: Checkpoint, weights: Weights) -> str:
    """The method that the tensors show, and what the config says of it."""
    if weights.quantization == "none":
        return f"none ({weights.spec.dtype})"
    config = checkpoint.config.get("quantization_config") or {}
    words = [weights.quantization]
    for field, text in (("bits", "{} bits"), ("group_size", "groups of {}")):
        if isinstance(config.get(field), int):
            words.append(text.format(config[field]))
    if config.get("desc_act"):
        words.append("act-order")
    return ", ".join(words)


def _text_problems(path: Path) -> Iterator[str]:
    """What a gateway needs beside the weights."""
    if not (path / "tokenizer.json").is_file():
        yield "tokenizer.json is missing: a gateway turns text into tokens with it"


def _warnings(path: Path) -> Iterator[str]:
    if not (path / "chat_template.jinja").is_file() and not _configured_template(path):
        yield "no chat template: chats are refused, completions are served"


def _configured_template(path: Path) -> bool:
    file = path / "tokenizer_config.json"
    return file.is_file() and '"chat_template"' in file.read_text("utf-8", "replace")
