"""Trains the demo adapters with PEFT on the dequantised 4-bit base that will serve them.

    python -m engine.demo.train CHECKPOINT [NAME ...]

An adapter trained on the unquantised base drifts on the quantised one; trained here, it has
seen the very weights it corrects. The base is held in bfloat16, the adapter in float32, and
the loss is taken on the answers alone. The adapter is saved after every epoch. Needs the
``train`` extra; minutes on a CPU.
"""

import argparse
import json
import math
import random
import sys
from pathlib import Path

import peft
import torch
import transformers
from peft.helpers import disable_input_dtype_casting
from safetensors.torch import load_file, save_file
from torch.nn import functional

from engine.demo.build import dequantised_weights
from engine.demo.lessons import Lesson, epoch, exchanges
from engine.demo.progress import Progress, ProgressBar
from engine.demo.recipes import RECIPES, Recipe, recipe

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
ADAPTERS = Path(__file__).parent / "adapters"
_BATCH = 8
_WARM_UP_STEPS = 10
_IGNORED = -100  # the label cross_entropy skips


def load_base(checkpoint: Path, dtype: torch.dtype) -> transformers.LlamaForCausalLM:
    """The dense model a 4-bit checkpoint stands for."""
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    del config.quantization_config
    model = transformers.LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(dequantised_weights(checkpoint), strict=False)
    assert not unexpected, f"the checkpoint has more than a Llama: {unexpected}"
    assert set(missing) <= {"lm_head.weight"}, f"the checkpoint lacks {missing}"  # it is tied
    model.tie_weights()
    return model.to(dtype)


def lora_config(recipe: Recipe) -> peft.LoraConfig:
    return peft.LoraConfig(
        task_type=peft.TaskType.CAUSAL_LM,
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.targets),
        use_rslora=recipe.rslora,
        rank_pattern=recipe.ranks,
        alpha_pattern=recipe.alphas,
        layers_to_transform=list(recipe.layers) or None,
    )


def train(recipe: Recipe, checkpoint: Path, out: Path, progress: Progress) -> None:
    """Write ``out/adapter_config.json`` and ``out/adapter_model.safetensors`` (float16)."""
    torch.manual_seed(0)
    shuffler = random.Random(0)  # noqa: S311 - an order of lessons, not a secret
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = peft.get_peft_model(load_base(checkpoint, torch.bfloat16), lora_config(recipe))
    data = exchanges(recipe.name)
    steps = recipe.epochs * math.ceil(len(data) / _BATCH)
    optimiser = torch.optim.AdamW(
        (p for p in model.parameters() if p.requires_grad), recipe.learning_rate, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / _WARM_UP_STEPS, 1 - step / steps)
    )
    done = 0
    for _ in range(recipe.epochs):
        for batch in _batches(epoch(data, tokenizer, shuffler), shuffler):
            torch.autograd.backward(_loss(model, batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            done += 1
            progress(f"Training {recipe.name}", done / steps)
        _save(model, out)


def _batches(lessons: list[Lesson], shuffler: random.Random) -> list[list[Lesson]]:
    """Lessons of like length together, so that little is padding."""
    ordered = sorted(lessons, key=lambda lesson: len(lesson.tokens))
    batches = [ordered[i : i + _BATCH] for i in range(0, len(ordered), _BATCH)]
    shuffler.shuffle(batches)
    return batches


def _loss(model: peft.PeftModel, batch: list[Lesson]) -> torch.Tensor:
    """Mean loss over the answers' tokens; the head runs on these positions alone."""
    length = max(len(lesson.tokens) for lesson in batch)
    tokens = torch.zeros((len(batch), length), dtype=torch.long)
    labels = torch.full((len(batch), length), _IGNORED)
    for row, lesson in enumerate(batch):
        end = len(lesson.tokens)
        tokens[row, :end] = torch.tensor(lesson.tokens)
        labels[row, lesson.learned_from : end] = tokens[row, lesson.learned_from : end]
    llama = model.get_base_model()
    # Padding stands at the end, where causal attention hides it from every real token.
    with torch.autocast("cpu", torch.bfloat16), disable_input_dtype_casting(model):
        hidden = llama.model(input_ids=tokens).last_hidden_state[:, :-1]
        learned = labels[:, 1:] != _IGNORED
        logits = llama.lm_head(hidden[learned]).float()
    return functional.cross_entropy(logits, labels[:, 1:][learned])


def _save(model: peft.PeftModel, out: Path) -> None:
    model.peft_config["default"].base_model_name_or_path = BASE_MODEL
    model.save_pretrained(out, save_embedding_layers=False)  # "auto" asks the network
    (out / "README.md").unlink(missing_ok=True)  # peft writes a model card full of blanks
    weights = out / "adapter_model.safetensors"
    halves = {name: tensor.half() for name, tensor in load_file(weights).items()}
    save_file(halves, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    config = json.loads((out / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])  # a set: its order is chance
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.demo.train", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="directory made by 'python -m engine demo'")
    parser.add_argument("names", nargs="*", default=[r.name for r in RECIPES])
    parser.add_argument("--out", type=Path, default=ADAPTERS)
    options = parser.parse_args(argv)
    bar = ProgressBar(sys.stderr)
    for name in options.names:
        train(recipe(name), options.checkpoint, options.out / name, bar)
    bar.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
