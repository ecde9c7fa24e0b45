"""What the empty end of a sequence's last page costs, by page size.

Lengths are those of chat transcripts as ShareGPT has them, drawn with a seed from two log-normals:
prompts with median 90 tokens (mu = ln 90, sigma 1.4) and answers with median 160 (mu = ln 160,
sigma 1.0), each at least 4 tokens, together at most 2048: means of about 200 and 250. Waste is
the unused share of the pages held, averaged over each sequence's life from its prompt to its last
token, weighted by how long it is held: what a snapshot of a busy pool shows.
"""

import argparse
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.flags import Parser, count
from engine.page_size import pages_of_tokens

PAGE_TOKENS = (16, 32, 64, 128)
PROMPT, ANSWER = (math.log(90), 1.4), (math.log(160), 1.0)  # mu, sigma of the log of tokens
SHORTEST, LONGEST = 4, 2048
SEQUENCES = 5000


@dataclass(frozen=True, slots=True)
class Length:
    prompt: int
    total: int


def draw_lengths(count: int = SEQUENCES, *, seed: int = 0) -> list[Length]:
    draw = random.Random(seed)  # noqa: S311
    found: list[Length] = []
    while len(found) < count:
        prompt, answer = (int(draw.lognormvariate(*log)) for log in (PROMPT, ANSWER))
        if min(prompt, answer) >= SHORTEST and prompt + answer <= LONGEST:
            found.append(Length(prompt, prompt + answer))
    return found


def waste(lengths: Iterable[Length], page_tokens: int) -> float:
    """Unused share of the tokens held, summed over every step of every sequence."""
    held = used = 0
    for length in lengths:
        for tokens in range(length.prompt, length.total + 1):
            used += tokens
            held += pages_of_tokens(tokens, page_tokens) * page_tokens
    return 1 - used / held


def table(shares: dict[int, float]) -> str:
    lines = ["| tokens a page | waste of the last page |", "|---:|---:|"]
    lines += [f"| {tokens} | {100 * share:.1f} % |" for tokens, share in shares.items()]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="loratorio bench waste", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--sequences", type=count, default=SEQUENCES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page-tokens", type=count, nargs="+", default=list(PAGE_TOKENS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    lengths = draw_lengths(options.sequences, seed=options.seed)
    shares = {tokens: waste(lengths, tokens) for tokens in options.page_tokens}
    print(json.dumps(shares) if options.json else table(shares))
    return 0
