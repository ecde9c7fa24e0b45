"""Trains the demo's draft model: four of the target's layers that learn to speak like all thirty.

It begins as the target's first and last layers between the target's embeddings, which stay as
they are and so need no second copy of the vocabulary's rows in training. It learns the target's
distribution at every token of the conversations, not the tokens alone: over the tokens said most,
and as many others as keep the rest of the vocabulary in its place, new ones for every batch.
"""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from engine.demo.progress import Progress
from engine.demo.teacher import (
    Batch,
    Recording,
    batch_count,
    batches,
    columns,
    divergence,
    frequent,
)

LAYERS = (0, 1, 28, 29)  # of the target
_FREQUENT, _OTHERS = 8192, 4096
_RATE = 6e-4
_WARM_UP_STEPS = 20
_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def small(target: transformers.LlamaForCausalLM) -> transformers.LlamaForCausalLM:
    """Untrained. In float32, as what is trained has to be."""
    config = transformers.LlamaConfig.from_dict(
        {**target.config.to_dict(), "num_hidden_layers": len(LAYERS)}
    )
    model = transformers.LlamaForCausalLM(config)
    layers = target.model.layers
    for layer, source in zip(model.model.layers, LAYERS, strict=True):
        layer.load_state_dict(layers[source].state_dict())
    model.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(target.model.norm.state_dict())
    model.tie_weights()
    model.float().requires_grad_(True)
    model.model.embed_tokens.requires_grad_(False)
    return model


def train(
    target: transformers.LlamaForCausalLM,
    recordings: Sequence[Recording],
    epochs: int,
    progress: Progress,
    *,
    together: int = 8,
) -> transformers.LlamaForCausalLM:
    shuffler = random.Random(0)  # noqa: S311 - an order of lessons, not a secret
    model = small(target).to(target.device)
    table = target.model.embed_tokens.weight.detach().bfloat16()
    often = frequent(recordings, len(table), _FREQUENT)
    chance = torch.Generator().manual_seed(0)
    learned = [p for p in model.parameters() if p.requires_grad]
    steps = epochs * batch_count(recordings, together)
    optimiser = torch.optim.AdamW(learned, _RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / _WARM_UP_STEPS, 1 - step / steps)
    )
    done = 0
    for _ in range(epochs):
        for batch in batches(recordings, together, shuffler):
            rows = columns(often, len(table), _OTHERS, chance).to(table.device)
            torch.autograd.backward(_loss(model, table[rows], batch))
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            done += 1
            progress("Training the draft model", done / steps)
    return model


def save(model: transformers.LlamaForCausalLM, checkpoint: Path, out: Path) -> None:
    """In float16, with the texts of the ``checkpoint`` it drafts for."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.half().contiguous().cpu()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # it is tied
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    config = json.loads((checkpoint / "config.json").read_text())
    config.pop("quantization_config", None)
    config["num_hidden_layers"] = len(LAYERS)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in _TEXT_FILES:
        shutil.copyfile(checkpoint / name, out / name)


def _loss(model: transformers.LlamaForCausalLM, table: torch.Tensor, batch: Batch) -> torch.Tensor:
    """``table`` holds the columns of the head that count."""
    with torch.autocast(table.device.type, torch.bfloat16):
        hidden = model.model(input_ids=batch.tokens).last_hidden_state[batch.real]
        wanted = (batch.final[batch.real] @ table.t()).float().softmax(-1)
        return divergence(hidden @ table.t(), wanted)
