"""How far off adapters are that an engine keeps in 8 bits, by their definition in float32.

    python -m bench.narrow_adapters --model DIR [ADAPTER ..] [--tokens 1024] [--store]

Of each adapter and each kind of codes: the product of B and A, worst of its layers; and on held-out
text (``engine/demo/text/evaluation.txt``) perplexity, and how far the next token's chances are from
those with the adapter as it was trained. Without ADAPTER those of the demo. No times, so it does
not matter what else the machine does.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import tokenizers
import torch

from adapters.base_spec import BaseSpec
from adapters.narrow import Narrow, rounded
from adapters.pack import PackedAdapter, pack
from bench.cpu_rows import table, write
from engine.bench.reference import Reference
from engine.bench.rows import Row
from engine.checkpoint import Checkpoint
from engine.quantiser.quality import Quality, Sums

NAME = "narrow_adapters"  # of the file of results
DEMO = ("json", "pirate", "bullets")
LENGTH = 256  # tokens of a sequence


def held_out(model: Path, tokens: int) -> list[list[int]]:
    text = (resources.files("engine.demo") / "text" / "evaluation.txt").read_text("utf-8")
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:tokens]
    found = [ids[i : i + LENGTH] for i in range(0, len(ids), LENGTH)]
    return [row for row in found if len(row) > 1]


def worst_product(exact: PackedAdapter, left: PackedAdapter) -> float:
    """Norm of the difference of B A, by that of B A itself, worst of all linear layers."""
    worst = 0.0
    for site, factor in exact.factors.items():
        product = factor.b.float() @ factor.a.float()
        if size := float(product.norm()):
            other = left.factors[site]
            worst = max(worst, float((other.b @ other.a - product).norm()) / size)
    return worst


def qualities(
    model: Path, exact: PackedAdapter, left: Sequence[PackedAdapter], rows: Sequence[list[int]]
) -> list[Quality]:
    """On the same text, of what is left of an adapter, each beside the adapter itself."""
    kinds = [exact, *left]
    sequences = [ids for ids in rows for _ in kinds]
    found = Reference(Checkpoint(model), torch.device("cpu")).logits(sequences, kinds * len(rows))
    sums = [Sums() for _ in left]
    for i, ids in enumerate(rows):
        before, *after = found[i * len(kinds) : (i + 1) * len(kinds)]
        for each, logits in zip(sums, after, strict=True):
            each.add(ids, before, logits)
    return [each.quality for each in sums]


def rows_of(model: Path, directory: Path, text: Sequence[list[int]]) -> Iterator[Row]:
    base = BaseSpec.from_checkpoint(model)
    exact = pack(directory, base, torch.float16)
    left = [rounded(exact, kind) for kind in Narrow]
    for kind, packed, quality in zip(
        Narrow, left, qualities(model, exact, left, text), strict=True
    ):
        ratio = quality.perplexity / quality.source_perplexity
        figures = {
            "product of B and A off by, worst layer": (100 * worst_product(exact, packed), "%"),
            "perplexity": (quality.perplexity, ""),
            "perplexity off by": (100 * (ratio - 1), "%"),
            "KL of the next token": (1e6 * quality.mean_kl, "millionths of a nat"),
            "same likeliest token": (100 * quality.agreement, "%"),
        }
        for metric, (value, unit) in figures.items():
            yield Row(
                bench=NAME, model=model.name, format="adapter", rank=exact.rank, batch=0,
                adapters=0, context=sum(len(row) - 1 for row in text),
                metric=f"{directory.name} in {kind}: {metric}", value=value, unit=unit,
                lora=kind,
            )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.narrow_adapters", description=__doc__)
    parser.add_argument("adapters", type=Path, nargs="*", metavar="ADAPTER")
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint, of the demo say")
    parser.add_argument("--tokens", type=int, default=1024, help="of held-out text")
    parser.add_argument("--store", action="store_true", help="write bench/results/cpu")
    options = parser.parse_args(arguments)
    stored = Path(str(resources.files("engine.demo"))) / "adapters"
    text = held_out(options.model, options.tokens)
    found = [
        row
        for directory in options.adapters or [stored / name for name in DEMO]
        for row in rows_of(options.model, directory, text)
    ]
    print(table(found))
    if options.store:
        print(f"written to {write(found, NAME, ('torch',))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
