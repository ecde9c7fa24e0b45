"""How far off adapters are that an engine keeps in 8 bits, by their definition in float32.

    python -m bench.narrow_adapters --model DIR [ADAPTER ..] [--tokens 512] [--store]

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
    model: Path, kept: Sequence[Sequence[PackedAdapter]], text: Sequence[list[int]]
) -> Iterator[list[Quality]]:
    """Of adapters, each as it is and as what is left of it; of what is left, beside the first.

    All at once, since the base's weights are dequantised for each call.
    """
    every = [packed for each in kept for packed in each]
    sequences = [ids for _ in every for ids in text]
    adapters = [packed for packed in every for _ in text]
    found = iter(Reference(Checkpoint(model), torch.device("cpu")).logits(sequences, adapters))
    for each in kept:
        exact, *left = [[next(found) for _ in text] for _ in each]
        sums = [Sums() for _ in left]
        for total, logits in zip(sums, left, strict=True):
            for ids, before, after in zip(text, exact, logits, strict=True):
                total.add(ids, before, after)
        yield [total.quality for total in sums]


def rows(model: Path, directories: Sequence[Path], text: Sequence[list[int]]) -> Iterator[Row]:
    base = BaseSpec.from_checkpoint(model)
    exact = [pack(directory, base, torch.float16) for directory in directories]
    kept = [[packed, *(rounded(packed, kind) for kind in Narrow)] for packed in exact]
    found = qualities(model, kept, text)
    for directory, (packed, *left), told in zip(directories, kept, found, strict=True):
        for kind, other, quality in zip(Narrow, left, told, strict=True):
            for metric, (value, unit) in figures(worst_product(packed, other), quality).items():
                yield Row(
                    bench=NAME, model=model.name, format="adapter", rank=packed.rank, batch=0,
                    adapters=0, context=quality.tokens,
                    op=f"{directory.name} in {kind}", metric=metric, value=value, unit=unit,
                    lora=kind,
                )  # fmt: skip


def figures(product: float, quality: Quality) -> dict[str, tuple[float, str]]:
    ratio = quality.perplexity / quality.source_perplexity
    return {
        "B A off by, worst layer": (100 * product, "%"),
        "perplexity": (quality.perplexity, ""),
        "perplexity off by": (100 * (ratio - 1), "%"),
        "KL of the next token": (1e6 * quality.mean_kl, "millionths of a nat"),
        "same likeliest token": (100 * quality.agreement, "%"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.narrow_adapters", description=__doc__)
    parser.add_argument("adapters", type=Path, nargs="*", metavar="ADAPTER")
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint, of the demo say")
    parser.add_argument("--tokens", type=int, default=512, help="of held-out text")
    parser.add_argument("--store", action="store_true", help="write bench/results/cpu")
    options = parser.parse_args(arguments)
    stored = Path(str(resources.files("engine.demo"))) / "adapters"
    text = held_out(options.model, options.tokens)
    directories = options.adapters or [stored / name for name in DEMO]
    found = list(rows(options.model, directories, text))
    print(table(found))
    if options.store:
        path = write(found, NAME, ("torch",))
        shown = path.read_text().replace(str(options.model), "DIR")  # where it lay is no matter
        path.write_text(shown)
        print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
