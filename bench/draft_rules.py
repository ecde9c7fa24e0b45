"""What two rules for keeping drafts bring at a temperature, from one head's and the base's chances.

    python -m bench.draft_rules --model DIR --speculators DIR [--temperature 1] [--drafts 3]

The base says something after each held-out prompt of ``bench.drafters``, at that temperature. At
every position of it both rules' chances to keep the first, second, .. draft follow from what the
base thinks there and what the EAGLE-3 head does, so little text says much. ``certain`` is what the
engine does: the head's most likely token is kept while the draw in its place is that token. With
``drawn`` the draft x comes from the head's own distribution q and is kept with probability
min(1, p(x) / q(x)), which leaves the base's distribution p as it is too.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional

from bench.drafters import requests
from engine.demo import eagle_head
from engine.demo.build import dequantised_weights
from engine.demo.eagle_head import Head
from engine.demo.llama import Shape
from engine.demo.own_words import Manner, Said, Speaker
from engine.demo.teacher import Recording, record
from engine.demo.train import load_base

RULES = ("certain", "drawn")
TURN, END = "<|im_start|>", "<|im_end|>"


def talked(checkpoint: Path, prompts: Sequence[Said], manner: Manner) -> list[Said]:
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    shape = Shape.of(json.loads((checkpoint / "config.json").read_text()))
    speaker = Speaker(
        shape, dequantised_weights(checkpoint), tokenizer.token_to_id(END), seed=0,
        device=torch.device("cpu"), rows=len(prompts),
    )  # fmt: skip
    said = speaker.go_on(prompts, manner, lambda done: None)
    return [[*prompt, *answer] for prompt, answer in zip(prompts, said, strict=True)]


def stored(folder: Path, target: transformers.LlamaForCausalLM) -> tuple[Head, torch.Tensor]:
    """A head as ``demo-speculators`` wrote it, and the tokens it can say."""
    tensors = load_file(folder / "model.safetensors")
    said = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    head = Head(target, said)
    head.embeddings[0], head.rows[0] = head.embeddings[0].float(), head.rows[0].float()
    for name, weight in head.weights.items():
        weight.data.copy_(tensors[f"{name.replace('/', '.')}.weight"])
    return head, said


@torch.inference_mode()
def chances(
    head: Head, said: torch.Tensor, recording: Recording, drafts: int, temperature: float
) -> dict[str, list[torch.Tensor]]:
    """By rule, of each draft the chance to be kept, [P] at the positions that have so many after
    them; the drafts before it are the tokens that were said."""
    tokens, first = recording.tokens, recording.learned_from - 1
    at = torch.arange(first, len(tokens) - 1 - drafts)
    found: dict[str, list[torch.Tensor]] = {rule: [] for rule in RULES}
    before = {rule: torch.ones(len(at)) for rule in RULES}
    table = head.embeddings[0]
    hidden = head.fuse(recording.features[None, :-1].float())
    past: list[tuple[torch.Tensor, ...]] = []
    for turn in range(drafts):
        hidden = head.turn(tokens[None, 1:], hidden, past)
        here, rows = at + turn, torch.arange(len(at))
        p = (recording.final[here + 1].float() @ table.t() / temperature).softmax(-1)
        q = torch.zeros_like(p)
        q[:, said] = (head.say(hidden[0, here]) / temperature).softmax(-1)
        likely, came = q.argmax(1), tokens[here + 2]
        found["certain"].append(before["certain"] * p[rows, likely])
        found["drawn"].append(before["drawn"] * torch.minimum(p, q).sum(1))
        before["certain"] = before["certain"] * (came == likely)
        kept = (q[rows, came] / p[rows, came].clamp(min=1e-30)).clamp(max=1.0)
        before["drawn"] = before["drawn"] * kept
        hidden = functional.pad(hidden[:, :-1], (0, 0, 1, 0))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.draft_rules", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the demo's 4-bit checkpoint")
    parser.add_argument("--speculators", type=Path, required=True, help="made by demo-speculators")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=48, help="of an answer, at most")
    parser.add_argument("--drafts", type=int, default=3)
    options = parser.parse_args(arguments)
    prompts = requests(options.model, options.speculators)["held-out prompts"]
    manner = Manner(options.tokens, options.temperature, nucleus=1.0)
    texts = talked(options.model, prompts, manner)
    target = load_base(options.model, torch.bfloat16).eval().requires_grad_(False)
    head, said = stored(options.speculators / "eagle3", target)
    opens = tokenizers.Tokenizer.from_file(str(options.model / "tokenizer.json")).token_to_id(TURN)
    recordings = record(target, texts, eagle_head.LAYERS, opens, lambda done: None)
    each = [chances(head, said, r, options.drafts, options.temperature) for r in recordings]
    for rule in RULES:
        parts = zip(*(found[rule] for found in each), strict=True)
        kept = [float(torch.cat(part).mean()) for part in parts]
        print(rule, *(f"draft {i + 1} kept {share:.3f}" for i, share in enumerate(kept)), sep=", ")
        print(f"  {1 + sum(kept):.3f} tokens a pass")
    print(f"{sum(len(found['drawn'][0]) for found in each)} positions of {len(texts)} answers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
