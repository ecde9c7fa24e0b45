"""How many drafts of each kind are kept on the demo base, and so how many tokens a pass brings.

    python -m bench.drafters --model DIR --speculators DIR [--tokens 64] [--drafts 3]

One stream of greedy answers to those prompts of ``tests/e2e/json_prompts.txt`` that neither a
lesson nor ``said.json`` of the speculators has, so that no drafter has learned from them (the head
in ``engine/demo/drafters`` was made with all of them left out), and to requests for a passage of
``engine/demo/text/evaluation.txt`` word for word. No scheduler: every pass after the prompt's
verifies drafts, whether they pay or not. Counts alone, no times, so it does not matter what else
the machine does. Answers are those without drafts, except where the two best tokens all but tie and
a product over more rows rounds otherwise (``--deterministic`` leaves no exception).
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import tokenizers

from bench.cpu_rows import read, table, write
from engine.bench.rows import Row
from engine.composition import build_runner
from engine.config import Device, EngineConfig
from engine.demo.corpus import question
from engine.demo.lessons import exchanges
from engine.demo.recipes import RECIPES
from engine.demo.speculators import SAID, bare
from engine.protocol import Sampling
from engine.speculation.proposer import Ask
from engine.speculation.settings import Method, SpeculationSettings
from engine.step import Chunk, Draw, StepPlan

NAME = "drafters"  # of the file of results
FOLDERS = re.compile(r"(--model|--speculators) \S+")  # where they lay is of no interest
GREEDY = Sampling(temperature=0.0)
PROMPTS = Path("tests/e2e/json_prompts.txt")
COPY = "Repeat this text word for word:\n\n{}"
PASSAGES, PASSAGE = 8, 240  # of characters
USER, END = "<|im_start|>user\n", "<|im_end|>"


@dataclass(slots=True)
class Tally:
    """Of the passes after the prompts'."""

    answers: list[list[int]] = field(default_factory=list)
    passes: int = 0
    tokens: int = 0
    drafts: int = 0
    verified: int = 0  # passes with drafts
    kept: int = 0
    kept_at: list[int] = field(default_factory=list)  # passes that kept the first, second, ..


class Stream:
    """One sequence after another through runner and proposer."""

    def __init__(self, config: EngineConfig) -> None:
        self._built, self._config, self._number = build_runner(config), config, 0
        self._drafts = config.speculation.tokens if config.speculation else 0

    def answer(self, prompt: list[int], most: int, tally: Tally, *, drafting: bool = True) -> None:
        self._number += 1
        pages = list(range(-(-(len(prompt) + most + self._drafts) // self._config.page_tokens)))
        output = [self._pass(prompt, 0, [], pages, prompt, [])[0]]
        while len(output) < most and output[-1] not in self._built.eos:
            drafts = self._propose(prompt, output, pages, most) if drafting else []
            found = self._pass([output[-1], *drafts], len(prompt) + len(output) - 1, drafts, pages,
                               prompt, output)  # fmt: skip
            kept = len(found) - 1
            ended = next((i + 1 for i, t in enumerate(found) if t in self._built.eos), len(found))
            output += found[:ended]
            tally.passes += 1
            tally.tokens += ended
            tally.drafts += len(drafts)
            tally.verified += bool(drafts)
            tally.kept += kept
            tally.kept_at += [0] * (self._drafts - len(tally.kept_at))
            for place in range(kept):
                tally.kept_at[place] += 1
        tally.answers.append(output[:most])
        if self._built.proposer is not None:
            self._built.proposer.forget(self._number)

    def _propose(
        self, prompt: list[int], output: list[int], pages: list[int], most: int
    ) -> list[int]:
        wanted = min(self._drafts, most - len(output) - 1)
        if self._built.proposer is None or wanted < 1:
            return []
        ask = Ask(sequence=self._number, prompt=prompt, output=output, most=wanted, pages=pages)
        return list(self._built.proposer.propose([ask]).get(self._number, ()))

    def _pass(
        self,
        tokens: list[int],
        start: int,
        drafts: list[int],
        pages: list[int],
        prompt: list[int],
        output: list[int],
    ) -> list[int]:
        draws = [
            Draw(sampling=GREEDY, seed=0, position=len(output) + i, prompt=prompt, output=output)
            for i in range(len(drafts) + 1)
        ]
        chunk = Chunk(
            sequence=self._number, tokens=tokens, start=start, pages=pages, draw=draws[0],
            drafts=draws[1:],
        )  # fmt: skip
        (drawn,) = self._built.runner.launch(StepPlan([chunk])).wait().drawn
        found = [drawn, *drawn.further]
        return [row.token for row in found if row.token is not None]


def requests(checkpoint: Path, speculators: Path) -> dict[str, list[list[int]]]:
    """Prompts as tokens, by kind."""
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = (resources.files("engine.demo") / "text" / "evaluation.txt").read_text("utf-8")
    passages = [text[at * 500 :][:PASSAGE].strip() for at in range(PASSAGES)]
    lines = PROMPTS.read_text("utf-8").splitlines()
    known = learned(tokenizer, speculators)
    asked = {
        "held-out prompts": [text for text in lines if bare(text) not in known],
        "copying": [COPY.format(passage) for passage in passages],
    }
    return {
        kind: [
            list(tokenizer.encode(question(text), add_special_tokens=False).ids) for text in texts
        ]
        for kind, texts in asked.items()
    }


def learned(tokenizer: tokenizers.Tokenizer, speculators: Path) -> set[str]:
    """The words of every question that a drafter may have learned from."""
    questions = [exchange.prompt for recipe in RECIPES for exchange in exchanges(recipe.name)]
    file = speculators / SAID
    if file.is_file():
        for said in json.loads(file.read_text()):
            text = tokenizer.decode(said, skip_special_tokens=False)
            questions.append(text.partition(USER)[2].partition(END)[0])
    return set(map(bare, questions))


def spread(prompts: list[list[int]], count: int | None) -> list[list[int]]:
    """So many of them, from the first to the last."""
    return prompts[:: max(1, len(prompts) // (count or len(prompts)))][:count]


def methods(
    folder: Path, drafts: int, wanted: Sequence[str]
) -> dict[str, SpeculationSettings | None]:
    found: dict[str, SpeculationSettings | None] = {
        "plain": None,
        "ngram": SpeculationSettings(
            method=Method.NGRAM, tokens=drafts, lookup_min=2, lookup_max=5
        ),
    }
    for name, method in (("draft", Method.DRAFT_MODEL), ("eagle3", Method.EAGLE3)):
        if (folder / name).is_dir():
            path = str(folder / name)
            found[str(method)] = SpeculationSettings(method=method, tokens=drafts, model=path)
    return {name: settings for name, settings in found.items() if name in (wanted or found)}


def keep(found: list[Row], methods: Sequence[str]) -> Path:
    """Beside the stored rows of other methods."""
    others = [row for row in read(NAME) if str(row["metric"]).partition(",")[0] not in methods]
    path = write(found, NAME, ["torch"])
    fresh = [row | {"command": FOLDERS.sub(r"\1 DIR", str(row["command"]))} for row in read(NAME)]
    path.write_text(json.dumps([*others, *fresh], indent=1) + "\n")
    return path


def rows(name: str, kind: str, tally: Tally, plain: list[list[int]] | None) -> list[Row]:
    found = [("tokens a pass", tally.tokens / tally.passes, "tokens")]
    if tally.verified:
        if plain is not None:
            same = sum(map(list.__eq__, tally.answers, plain))
            found.append(("answers as without drafts", same / len(plain), "share"))
        found.append(("drafts kept a verifying pass", tally.kept / tally.verified, "tokens"))
        found.append(("share of drafts kept", tally.kept / tally.drafts, "share"))
        found.append(("passes that verify", tally.verified / tally.passes, "share"))
        for place, count in enumerate(tally.kept_at):
            found.append((f"draft {place + 1} kept", count / tally.verified, "share"))
    return [
        Row(
            bench="drafters",
            model="smollm2-135m",
            format="gptq",
            rank=0,
            batch=1,
            adapters=0,
            context=0,
            metric=f"{name}, {kind}: {metric}",
            value=round(value, 3),
            unit=unit,
        )
        for metric, value, unit in found
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.drafters", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the demo's 4-bit checkpoint")
    parser.add_argument("--speculators", type=Path, required=True, help="made by demo-speculators")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--drafts", type=int, default=3, help="that a pass verifies, at most")
    parser.add_argument("--methods", nargs="+", default=[], help="all if not given")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--threads", type=int, help="compute threads")
    parser.add_argument("--prompts", type=int, help="of each kind; all if not given")
    options = parser.parse_args(arguments)
    asked = requests(options.model, options.speculators)
    found, plain = list[Row](), dict[str, list[list[int]]]()
    chosen = methods(options.speculators, options.drafts, options.methods)
    for name, settings in chosen.items():
        stream = Stream(
            EngineConfig(
                model=str(options.model), device=Device.CPU, speculation=settings,
                max_model_len=2048, threads=options.threads,
                deterministic=options.deterministic,
            )
        )  # fmt: skip
        for kind, prompts in asked.items():
            tally = Tally()
            for prompt in spread(prompts, options.prompts):
                stream.answer(prompt, options.tokens, tally)
            if settings is None:
                plain[kind] = tally.answers
            found += rows(name, kind, tally, plain.get(kind))
            print(name, kind, f"{tally.tokens / tally.passes:.3f} tokens a pass", flush=True)
    print(table(found))
    print(f"written to {keep(found, list(chosen))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
