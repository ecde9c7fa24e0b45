"""``loratorio bench fairness|churn|prefix``: what tenants and adapters do to each other.

    fairness   one tenant floods at 10 times its share: what others notice, and the throughput
    churn      more adapters than fit at once: what moving them costs those who run
    prefix     many prompts with one beginning: what is not computed, and the pages it takes

An engine alone, without sockets: a random checkpoint of ``--shape`` (``tiny`` is made in seconds),
or ``--model DIR``. ``--simulate cpu|gpu`` needs no torch and takes no real time; fairness only.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.bench.flood import Scene, flood
from engine.bench.rows import Report, Row
from engine.bench.shapes import FORMATS, SHAPES
from engine.bench.simulated import CPU, GPU, SimulatedEngine
from engine.bench.traffic import Player
from engine.config import EngineConfig
from engine.fairness import Fairness
from engine.flags import Parser, count

TARGET_S = 0.025  # of a simulated GPU's pass, as the engine's own default
BENCHES = ("fairness", "churn", "prefix")


def main(argv: Sequence[str]) -> int:
    """Returns 1 when a benchmark was refused."""
    options = _parser().parse_args(argv)
    if options.simulate and options.bench != "fairness":
        _parser().error("--simulate: only fairness can be simulated")
    try:
        device, rows = _simulated(options) if options.simulate else _real(options)
    except RuntimeError as refusal:
        print(f"{options.bench} not reported: {refusal}", file=sys.stderr)
        return 1
    report = Report(device, rows, list(argv), options.commit)
    print(report.table())
    print(report.write(options.out, f"{options.bench}-{rows[0].model}", {}))
    return 0


def _simulated(options: argparse.Namespace) -> tuple[str, list[Row]]:
    costs = {"cpu": CPU, "gpu": GPU}[options.simulate]
    config = EngineConfig(
        model="simulated", max_num_seqs=options.max_num_seqs, max_waiting=options.max_waiting
    )

    def player() -> Player:
        of = SimulatedEngine(
            config, costs, pages=options.max_num_seqs * 64,
            max_step_s=TARGET_S if costs is GPU else None,
        )  # fmt: skip
        return Player(of.core, clock=of.clock, sleep=of.clock.sleep)

    return f"simulated {costs.name}", fairness_rows(player, _scene(options), options, "simulated")


def _real(options: argparse.Namespace) -> tuple[str, list[Row]]:
    from engine.bench.tenants_alone import Alone

    alone = Alone(options)
    if options.bench == "fairness":
        return alone.device, fairness_rows(alone.player, _scene(options), options, alone.model)
    return alone.device, alone.churn() if options.bench == "churn" else alone.prefix()


def _scene(options: argparse.Namespace) -> Scene:
    return Scene(
        others=options.others, prompt=options.input_len, answer=options.output_len,
        seconds=options.seconds, seed=options.seed,
    )  # fmt: skip


def fairness_rows(
    player: Callable[[], Player], scene: Scene, options: argparse.Namespace, model: str
) -> list[Row]:
    found = flood(player, scene)
    bound = Fairness(EngineConfig(model="").fairness_quantum).gap_bound(
        options.max_num_seqs, longest_prompt=scene.prompt
    )
    figures = [
        ("capacity", found.capacity, "requests/s"),
        ("others alone: P95 to first token", 1000 * found.alone_s, "ms"),
        ("others beside a flood: P95 to first token", 1000 * found.flooded_s, "ms"),
        ("slower by the flood (limit 2)", found.slower, "times"),
        ("throughput", found.tokens, "tokens/s"),
        ("throughput, first come first served", found.tokens_in_turn, "tokens/s"),
        ("throughput of first come first served (at least 0.95)", found.throughput, "share"),
        ("bound of the gap in service of two who always wait", bound, "cost"),
    ]
    return [made(options, "fairness", model, *figure) for figure in figures]


def made(
    options: argparse.Namespace, bench: str, model: str, metric: str, value: float, unit: str
) -> Row:
    return Row(
        bench=bench, model=model, format=options.format, rank=options.rank,
        batch=options.max_num_seqs, adapters=options.adapters if bench == "churn" else 0,
        context=options.input_len, metric=metric, value=value, unit=unit,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="loratorio bench", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--simulate", choices=("cpu", "gpu"))
    parser.add_argument("--model", type=Path, metavar="DIR", help="instead of a random checkpoint")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--format", choices=FORMATS, default="awq")
    parser.add_argument("--max-num-seqs", type=count, default=16, metavar="N")
    parser.add_argument("--max-waiting", type=count, default=1024, metavar="N")
    parser.add_argument("--max-model-len", type=count, metavar="TOKENS")
    parser.add_argument("--block-size", type=count, default=64, metavar="TOKENS")
    parser.add_argument("--pool-bytes", type=count, metavar="BYTES", help="of the page pool")
    parser.add_argument("--others", type=count, default=4, metavar="N", help="tenants")
    parser.add_argument("--adapters", type=count, default=32, metavar="N")
    parser.add_argument("--rank", type=count, default=16)
    parser.add_argument("--input-len", type=count, default=64, metavar="TOKENS")
    parser.add_argument("--output-len", type=count, default=64, metavar="TOKENS")
    parser.add_argument("--seconds", type=count, default=60)
    parser.add_argument("--rounds", type=count, default=20, metavar="N", help="prompts of prefix")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "loratorio")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    return parser
