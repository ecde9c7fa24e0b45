"""Makes what drafts for the demo base: a small model and an EAGLE-3 head.

    python -m engine.demo.speculators CHECKPOINT OUT [draft|eagle3 ...]

The base talks first (``own_words``); both then learn from what it said. OUT/said.json keeps that,
so that training again need not wait for it. Needs the ``train`` extra; a quarter of an hour of one
core, or with ``--device cuda`` two hundred times the text in some minutes of a large GPU. More
questions and epochs make better drafts.
"""

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tokenizers
import torch

from engine.demo import draft_model, eagle_head, eagle_training
from engine.demo.build import dequantised_weights
from engine.demo.corpus import SYSTEM
from engine.demo.lessons import exchanges
from engine.demo.llama import Shape
from engine.demo.own_words import Manner, Said, Speaker, Talk
from engine.demo.progress import Progress, ProgressBar
from engine.demo.recipes import RECIPES
from engine.demo.replay import replay
from engine.demo.scale import LARGE, SMALL, Allowance, Scale
from engine.demo.teacher import Recording, record
from engine.demo.train import load_base

NAMES = ("draft", "eagle3")
SAID, TRIED, REPORT = "said.json", "tried.json", "report.json"
_TALKING = 0.4  # of the time, where it is limited
_TRIED_TOKENS, _TRIED_DRAFTS = 64, 5
_OPEN, _END = "<|im_start|>", "<|im_end|>"


def talk(
    talk: Talk, left_out: Sequence[str], scale: Scale, progress: Progress, allowance: Allowance
) -> list[Said]:
    """Answers to the lessons' questions and to others, none of them ``left_out``. Of the questions
    that it invents the base makes the beginnings of further ones. The same on the same machine, if
    there is time enough."""
    shuffler = random.Random(0)  # noqa: S311 - beginnings of questions, not a secret
    lessons = sorted({exchange.prompt for recipe in RECIPES for exchange in exchanges(recipe.name)})
    asked, begun = set(map(bare, left_out)), ["", *openings(lessons)]
    said, invented, texts = list[Said](), 0, [talk.asked(prompt) for prompt in lessons]
    while True:
        once = {bare(talk.text(text)): text for text in texts}
        fresh = [text for words, text in once.items() if words not in asked]
        asked |= once.keys()
        said += talk.answered(fresh, Manner(scale.answer, 0.0), lambda done: None)
        share = max(min(1.0, invented / scale.questions), allowance.spent())
        progress("Talking", share)
        if share >= 1:
            return said
        count = min(scale.speaking, scale.questions - invented)
        texts = talk.invented(count, shuffler.choices(begun, k=count), lambda done: None)
        begun += openings([talk.text(text) for text in texts])
        invented += count


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
    names: Sequence[str],
    progress: Progress,
    *,
    device: torch.device,
    scale: Scale,
    left_out: Sequence[str] = (),
    seconds: float | None = None,
) -> None:
    """Write ``out/NAME`` for each name. ``left_out``: questions to be tried on what is made, which
    nobody may have learned from. ``seconds``: that it may take, about."""
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(checkpoint)
    if not (out / SAID).is_file():
        _listen(checkpoint, out, left_out, device, scale, progress, seconds)
    said, tried = (json.loads((out / name).read_text()) for name in (SAID, TRIED))
    target = load_base(checkpoint, torch.bfloat16).eval().requires_grad_(False).to(device)
    opens = _mark(tokenizer, _OPEN)

    def recorded(what: list[Said], progress: Progress) -> list[Recording]:
        return record(
            target, what, eagle_head.LAYERS, opens,
            lambda done: progress("Listening to the base", done), together=scale.listening,
        )  # fmt: skip

    recordings = recorded(said, progress)
    report: dict[str, int | float | list[float]] = {
        "conversations": len(said),
        "tokens": sum(map(len, said)),
        "tokens of answers": sum(len(r.tokens) - r.learned_from for r in recordings),
    }
    if "eagle3" in names:
        allowance = Allowance(None if seconds is None else (1 - _TALKING) * seconds)
        head, tokens = eagle_training.train(target, recordings, scale, progress, allowance)
        eagle_head.save(head, tokens, target.config, out / "eagle3")
        heard = recorded(tried, lambda stage, done: None)
        for drafts in range(1, _TRIED_DRAFTS + 1) if tried else ():
            passes = replay(head, tokens, heard, drafts)
            report[f"eagle3: tokens a pass, {drafts} drafts"] = round(passes.tokens_a_pass, 3)
            report[f"eagle3: kept, {drafts} drafts"] = [round(share, 3) for share in passes.shares]
    if "draft" in names:
        model = draft_model.train(
            target, recordings, scale.draft_epochs, progress, together=scale.learning
        )
        draft_model.save(model, checkpoint, out / "draft")
    report["seconds"] = round(time.monotonic() - begun)
    (out / REPORT).write_text(json.dumps(report, indent=2) + "\n")


def _listen(
    checkpoint: Path,
    out: Path,
    left_out: Sequence[str],
    device: torch.device,
    scale: Scale,
    progress: Progress,
    seconds: float | None,
) -> None:
    """Write what the base says: SAID to learn from, TRIED to the questions left out."""
    tokenizer = _tokenizer(checkpoint)
    shape = Shape.of(json.loads((checkpoint / "config.json").read_text()))
    speaker = Speaker(
        shape, dequantised_weights(checkpoint), _mark(tokenizer, _END), seed=0,
        device=device, rows=scale.speaking,
    )  # fmt: skip
    base = Talk(speaker, tokenizer, SYSTEM)
    asked = [base.asked(text) for text in left_out]
    tried = base.answered(asked, Manner(_TRIED_TOKENS, 0.0), lambda done: None) if asked else []
    (out / TRIED).write_text(json.dumps(tried))
    allowance = Allowance(None if seconds is None else _TALKING * seconds)
    (out / SAID).write_text(json.dumps(talk(base, left_out, scale, progress, allowance)))


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
    parser.add_argument("--device", default="cpu", help="cpu or cuda, which does far more")
    parser.add_argument("--questions", type=int, help="that the base invents")
    parser.add_argument(
        "--leave-out", type=Path, help="file of questions, one a line, that nothing is learned from"
    )
    parser.add_argument("--epochs", type=int, help="of each")
    parser.add_argument("--seconds", type=float, help="that talking and the head may take, about")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"{min(unknown)!r} is none of {', '.join(NAMES)}")
    bar = ProgressBar(sys.stderr)
    left_out = options.leave_out.read_text("utf-8").splitlines() if options.leave_out else []
    device = torch.device(options.device)
    scale = SMALL if device.type == "cpu" else LARGE
    scale = replace(
        scale,
        questions=options.questions or scale.questions,
        draft_epochs=options.epochs or scale.draft_epochs,
        head_epochs=options.epochs or scale.head_epochs,
    )
    make(
        options.checkpoint, options.out, options.names, bar,
        device=device, scale=scale, left_out=left_out, seconds=options.seconds,
    )  # fmt: skip
    bar.close()
    sys.stdout.write((options.out / REPORT).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
