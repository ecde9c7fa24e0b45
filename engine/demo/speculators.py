"""Makes what drafts for the demo base: a small model and an EAGLE-3 head.

    python -m engine.demo.speculators CHECKPOINT OUT [draft|eagle3 ...]

The base talks first (``own_words``); both then learn from what it said. OUT/said.json keeps that,
so that training again need not wait for it. Needs the ``train`` extra; a quarter of an hour of one
core. More questions and epochs make better drafts.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import tokenizers
import torch

from engine.demo import draft_model, eagle_head
from engine.demo.build import dequantised_weights
from engine.demo.corpus import SYSTEM
from engine.demo.lessons import exchanges
from engine.demo.llama import Shape
from engine.demo.own_words import Manner, Speaker, Talk
from engine.demo.progress import Progress, ProgressBar
from engine.demo.recipes import RECIPES
from engine.demo.teacher import record
from engine.demo.train import load_base

NAMES = ("draft", "eagle3")
SAID = "said.json"
_QUESTIONS = 192  # of its own
_GREEDY = Manner(tokens=96, temperature=0.0)
_EPOCHS = {"draft": 2, "eagle3": 6}
_OPEN, _END = "<|im_start|>", "<|im_end|>"


def talk(
    checkpoint: Path, out: Path, questions: int, left_out: Sequence[str], progress: Progress
) -> None:
    """Answers to the lessons' questions and to others. The same on the same machine."""
    tokenizer = _tokenizer(checkpoint)
    shape = Shape.of(json.loads((checkpoint / "config.json").read_text()))
    end = _mark(tokenizer, _END)
    speaker = Speaker(shape, dequantised_weights(checkpoint), end, seed=0)
    talk = Talk(speaker, tokenizer, SYSTEM)
    lessons = {exchange.prompt for recipe in RECIPES for exchange in exchanges(recipe.name)}
    texts = [talk.asked(prompt) for prompt in sorted(lessons)]
    begun = ["", *openings(sorted(lessons))]
    texts += talk.invented(questions, begun, lambda done: progress("Asking", done))
    never = set(map(bare, left_out))
    once = {bare(talk.text(text)): text for text in texts}
    texts = [text for words, text in once.items() if words not in never]
    said = talk.answered(texts, _GREEDY, lambda done: progress("Answering", done))
    out.write_text(json.dumps(said))


def openings(questions: Sequence[str]) -> list[str]:
    """Their first half, at most three words."""
    words = [question.split() for question in questions]
    return [" ".join(each[: min(3, len(each) // 2)]) for each in words if len(each) > 1]


def bare(question: str) -> str:
    """Questions of the same words are the same question."""
    return " ".join(re.findall(r"\w+", question.lower()))


def make(
    checkpoint: Path,
    out: Path,
    names: list[str],
    progress: Progress,
    *,
    questions: int = _QUESTIONS,
    left_out: Sequence[str] = (),
    epochs: int | None = None,
) -> None:
    """Write ``out/NAME`` for each name. ``left_out``: questions to be tried on what is made, which
    nobody may have learned from. ``epochs``: of each; None: what a quarter of an hour allows."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / SAID).is_file():
        talk(checkpoint, out / SAID, questions, left_out, progress)
    said = json.loads((out / SAID).read_text())
    target = load_base(checkpoint, torch.bfloat16).eval().requires_grad_(False)
    recordings = record(
        target, said, eagle_head.LAYERS, _mark(_tokenizer(checkpoint), _OPEN),
        lambda done: progress("Listening to the base", done),
    )  # fmt: skip
    if "eagle3" in names:
        head, tokens = eagle_head.train(target, recordings, epochs or _EPOCHS["eagle3"], progress)
        eagle_head.save(head, tokens, target.config, out / "eagle3")
    if "draft" in names:
        model = draft_model.train(target, recordings, epochs or _EPOCHS["draft"], progress)
        draft_model.save(model, checkpoint, out / "draft")


def _tokenizer(checkpoint: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


def _mark(tokenizer: tokenizers.Tokenizer, text: str) -> int:
    token = tokenizer.token_to_id(text)
    assert token is not None, f"the demo's tokenizer knows {text}"
    return int(token)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.demo.speculators", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="directory made by 'python -m engine demo'")
    parser.add_argument("out", type=Path, help="directory of the speculators")
    parser.add_argument("names", nargs="*", default=list(NAMES), help=" or ".join(NAMES))
    parser.add_argument(
        "--questions", type=int, default=_QUESTIONS, help=f"that the base invents ({_QUESTIONS})"
    )
    parser.add_argument(
        "--leave-out", type=Path, help="file of questions, one a line, that nothing is learned from"
    )
    parser.add_argument("--epochs", type=int, help=f"of each (by default {_EPOCHS})")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"{min(unknown)!r} is none of {', '.join(NAMES)}")
    bar = ProgressBar(sys.stderr)
    left_out = options.leave_out.read_text("utf-8").splitlines() if options.leave_out else []
    make(
        options.checkpoint, options.out, options.names, bar,
        questions=options.questions, left_out=left_out, epochs=options.epochs,
    )  # fmt: skip
    bar.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
