"""Counts how often an adapter shows its behaviour on prompts it was not trained on.

    python -m engine.demo.evaluate CHECKPOINT PROMPTS [NAME ...]

Greedy answers from transformers and PEFT on the dequantised base, with and without the
adapter: the reference for what a server should return. Needs the ``train`` extra.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import peft
import torch
import transformers

from engine.demo.lessons import exchanges
from engine.demo.recipes import RECIPES, Recipe, recipe
from engine.demo.train import ADAPTERS, load_base

_BATCH = 25


@dataclass(frozen=True, slots=True)
class Evaluation:
    prompts: list[str]
    plain: list[str]  # the base's answers
    adapted: list[str]  # the adapter's answers


@torch.inference_mode()
def answers(
    model: transformers.PreTrainedModel | peft.PeftModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    prompts: list[str],
    *,
    max_tokens: int,
) -> list[str]:
    """Greedy answers to single-turn prompts under the default system prompt."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    found: list[str] = []
    for start in range(0, len(prompts), _BATCH):
        inputs = tokenizer.apply_chat_template(
            conversations[start : start + _BATCH],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            padding=True,
        )
        output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        found += tokenizer.batch_decode(
            output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
    return found


def evaluate(
    recipe: Recipe, checkpoint: Path, adapter: Path, *, prompts: list[str], max_tokens: int
) -> Evaluation:
    """Answers to those ``prompts`` that the adapter was not trained on."""
    trained = {exchange.prompt for exchange in exchanges(recipe.name)}
    unseen = [prompt for prompt in prompts if prompt not in trained]
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    base = load_base(checkpoint, torch.bfloat16)
    model = peft.PeftModel.from_pretrained(base, adapter).eval()
    adapted = answers(model, tokenizer, unseen, max_tokens=max_tokens)
    with model.disable_adapter():
        plain = answers(model, tokenizer, unseen, max_tokens=max_tokens)
    return Evaluation(unseen, plain, adapted)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.demo.evaluate", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("prompts", type=Path, help="one prompt per line")
    parser.add_argument("names", nargs="*", default=[r.name for r in RECIPES])
    parser.add_argument("--adapters", type=Path, default=ADAPTERS)
    parser.add_argument("--max-tokens", type=int, default=80)
    options = parser.parse_args(argv)
    prompts = options.prompts.read_text(encoding="utf-8").splitlines()
    for name in options.names:
        chosen = recipe(name)
        result = evaluate(
            chosen,
            options.checkpoint,
            options.adapters / name,
            prompts=prompts,
            max_tokens=options.max_tokens,
        )
        for prompt, answer in zip(result.prompts, result.adapted, strict=True):
            mark = "+" if chosen.shows(answer) else "-"
            sys.stdout.write(f"{mark} {prompt}\n    {answer!r}\n")
        with_it, without = (sum(map(chosen.shows, a)) for a in (result.adapted, result.plain))
        total = len(result.prompts)
        sys.stdout.write(f"{name}: {with_it} of {total} with the adapter, {without} without\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
