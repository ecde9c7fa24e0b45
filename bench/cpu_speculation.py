"""The demo base with n-gram drafts beside itself without them, an engine alone on this CPU.

    python -m bench.cpu_speculation --checkpoint DIR [--repeats 4] [--streams 1 4]

Copying: the answer repeats a text of the prompt. Free: it is told to make something up, so little
of it came before, and drafts have to rest by themselves. Both engines take turns; a round is all
requests of a kind, and its tokens per second count the prompts' time too. The tokens are compared:
they have to be the same, but for ties that fall otherwise in wider passes.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from bench.cpu_rows import table, write
from engine.bench.alone import LoneEngine, Requests
from engine.bench.rows import Row
from engine.config import Device, EngineConfig
from engine.speculation.settings import Method, SpeculationSettings

TOKENS = 80  # of each answer
NGRAM = SpeculationSettings(method=Method.NGRAM, tokens=7, lookup_min=2, lookup_max=5)
TEXTS = (
    "The river rises in the hills north of the town and runs for ninety kilometres to the sea. In "
    "spring the melting snow makes it wide and brown; in late summer children cross it on stones. "
    "Three bridges span it: the oldest, of grey granite, was built in 1742 by a mason called "
    "Aldous Fenn, who was paid in flour and candles.",
    "Order 4471 was packed on Monday and left the warehouse at noon. It holds two lamps, a wooden "
    "chair, nine books and a clock that strikes the hours. The driver has a key to the side door "
    "and will ring twice. If nobody answers he leaves everything with the neighbours at number "
    "twelve, who have agreed to keep it until the weekend.",
    "To make the soup, fry two onions in butter until they are golden, add a spoon of flour, and "
    "stir. Pour in a litre of stock and let it boil for twenty minutes. Slice the bread thinly, "
    "lay it in the bowls, cover it with cheese, and pour the hot soup over it. Serve it at once "
    "with pepper and a little parsley.",
    "The committee met in the old library at nine. Present were the chair, the treasurer, and four "
    "members. The minutes of March were read and approved. The treasurer reported that the roof "
    "had cost less than planned and that the rest would pay for new windows. The next meeting "
    "will be held on the second Tuesday of June.",
)
TOPICS = ("a lighthouse", "an honest thief", "the last train", "a garden in winter")


@dataclass(slots=True)
class Side:
    """One engine and what came of its rounds: tokens a second, and a pass for each stream."""

    engine: LoneEngine
    rates: list[float] = field(default_factory=list)
    tokens_a_pass: list[float] = field(default_factory=list)

    def round(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        requests, seconds, passes = Requests(), 0.0, 0
        for number, prompt in enumerate(prompts):
            self.engine.submit(f"r{number}", prompt, TOKENS)
        for took in self.engine.passes(requests):
            seconds += took
            passes += bool(requests.outputs)
        self.rates.append(TOKENS * len(prompts) / seconds)
        self.tokens_a_pass.append(TOKENS / passes)
        return [requests.outputs[f"r{number}"] for number in range(len(prompts))]


def measure(
    checkpoint: Path, repeats: int, counts: Sequence[int], threads: int | None
) -> list[Row]:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    plain, drafting = (Side(_engine(checkpoint, wanted, threads)) for wanted in (None, NGRAM))
    rows = list[Row]()
    kinds = {
        "copying": [f"Repeat this text word for word:\n\n{text}" for text in TEXTS],
        "free": [f"Write a short story about {topic}." for topic in TOPICS],
    }
    for kind, questions in kinds.items():
        prompts = [_prompt(tokenizer, question) for question in questions]
        for streams in counts:
            same = _compare(plain, drafting, prompts, streams, repeats)
            rows += _rows(kind, streams, plain, drafting, same)
    return rows


def _compare(
    plain: Side, drafting: Side, prompts: Sequence[list[int]], streams: int, repeats: int
) -> float:
    """Measures both in turn. Returns the share of answers that are the same."""
    same = list[bool]()
    for repeat in range(-1, repeats):  # the first warms up
        if repeat == 0:
            for side in (plain, drafting):
                side.rates.clear()
                side.tokens_a_pass.clear()
        chosen = [prompts[(repeat + i) % len(prompts)] for i in range(streams)]
        expected, found = plain.round(chosen), drafting.round(chosen)
        same += [a == b for a, b in zip(expected, found, strict=True)]
    return sum(same) / len(same)


def _engine(
    checkpoint: Path, speculation: SpeculationSettings | None, threads: int | None
) -> LoneEngine:
    return LoneEngine(
        EngineConfig(
            model=str(checkpoint), device=Device.CPU, max_model_len=1024, max_num_seqs=8,
            enable_prefix_caching=False, speculation=speculation, threads=threads,
        )
    )  # fmt: skip


def _prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    chat = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(chat).ids
    return ids


def _rows(kind: str, streams: int, plain: Side, drafting: Side, same: float) -> list[Row]:
    def row(metric: str, unit: str, value: float, peer: float | None = None) -> Row:
        return Row(
            bench="n-gram drafts", model="smollm2-135m-instruct", format="gptq 4-bit", rank=0,
            batch=streams, adapters=0, context=0, metric=f"{kind}: {metric}", value=value,
            unit=unit, peer="" if peer is None else "the same engine without drafts",
            peer_value=peer,
        )  # fmt: skip

    with_drafts, without = statistics.median(drafting.rates), statistics.median(plain.rates)
    pairs = zip(drafting.rates, plain.rates, strict=True)  # of rounds one after the other
    gain = statistics.median(fast / slow for fast, slow in pairs)
    return [
        row("generated tokens", "tokens/s", with_drafts, without),
        row("gain, round by round", "x", gain),
        row("tokens a pass", "tokens", statistics.median(drafting.tokens_a_pass)),
        row("answers that are the same", "share", same),
        row("load average", "processes", os.getloadavg()[0]),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_speculation", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="the demo base")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, help="of each engine; one where others compute too")
    options = parser.parse_args(arguments)
    rows = measure(options.checkpoint, options.repeats, options.streams, options.threads)
    print(table(rows))
    print(write(rows, "speculation", ["torch"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
