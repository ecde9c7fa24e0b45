"""``make fuzz``: very many inputs to every parser of what strangers send.

    python -m tests.fuzz.run --inputs 1000000 --seed 1

Prints what was accepted and refused. A crash ends with exit code 1 and the input in .fuzz/, from
where it should become a test.
"""

import argparse
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.targets import Target, targets

SLOW_S = 2.0  # for one input, on a busy machine
CRASHES = Path(".fuzz")


@dataclass
class Outcome:
    accepted: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    crashes: list[Path] = field(default_factory=list)


def fuzz(target: Target, count: int, seed: int, *, keep: Path = CRASHES) -> Outcome:
    random, outcome = Random(f"{target.name} {seed}"), Outcome()
    for _ in range(count):
        data = target.make(random)
        began = time.perf_counter()
        try:
            accepted = target.accepts(data)
        except Exception:
            outcome.crashes.append(_kept(keep, target, data, traceback.format_exc()))
            continue
        took = time.perf_counter() - began
        outcome.slowest_s = max(outcome.slowest_s, took)
        if took > SLOW_S:
            outcome.crashes.append(_kept(keep, target, data, f"took {took:.1f} s"))
        outcome.accepted += accepted
        outcome.refused += not accepted
    return outcome


def _kept(keep: Path, target: Target, data: bytes, why: str) -> Path:
    keep.mkdir(exist_ok=True)
    number = sum(1 for _ in keep.glob("*.bin"))
    path = keep / f"{target.name.replace(' ', '-')}-{number}.bin"
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(why)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # a line for each refusal
    crashes = 0
    with tempfile.TemporaryDirectory() as scratch:
        for target in targets(Path(scratch)):
            count, began = round(options.inputs * target.share), time.perf_counter()
            found = fuzz(target, count, options.seed)
            crashes += len(found.crashes)
            sys.stdout.write(
                f"{target.name:20} {count:>9,} inputs: {found.accepted:>9,} accepted,"
                f" {found.refused:>9,} refused, {len(found.crashes)} crashes,"
                f" {time.perf_counter() - began:.0f} s, slowest {found.slowest_s * 1e3:.0f} ms\n"
            )
            sys.stdout.flush()
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
