"""``loratorio bench fairness|churn|prefix|batching``: what tenants and adapters do to each other.

    fairness   one tenant floods at 10 times its share, and a very long prompt enters: what others
               notice, and the throughput
    churn      more adapters than were ever seen at once: what moving them costs those who run, and
               an alias that switches under load
    prefix     many prompts with one beginning: what is not computed, and the pages it takes
    batching   continuous batching beside static batches

Several may be named: they share one engine. It is one without sockets, of a random checkpoint of
``--shape`` (``tiny`` is made in seconds) or of ``--model DIR``. Each bench writes its results when
it is done. ``--simulate cpu|gpu`` needs no torch and takes no real time; the flood only.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.bench.flood import Scene, flood
from engine.bench.rows import Found, Report, Row
from engine.bench.shapes import FORMATS, SHAPES
from engine.bench.simulated import CPU, GPU, SimulatedEngine
from engine.bench.traffic import Player
from engine.config import EngineConfig
from engine.fairness import Fairness
from engine.flags import Parser, amount, count

if TYPE_CHECKING:
    from engine.bench.tenants_alone import Alone

TARGET_S = 0.025  # of a simulated GPU's pass, as the engine's own default
BENCHES = ("fairness", "churn", "prefix", "batching")


def main(argv: Sequence[str]) -> int:
    """Returns 1 when a benchmark was refused."""
    options = _parser().parse_args(argv)
    if options.simulate:
        if options.bench != ["fairness"]:
            _parser().error("--simulate: only fairness can be simulated")
        return _report(options, argv, "fairness", partial(_simulated, options))
    from engine.bench.tenants_alone import Alone

    alone = Alone(options)
    benches = dict.fromkeys(options.bench)  # each once
    return max(_report(options, argv, bench, partial(_real, alone, bench)) for bench in benches)


def _report(
    options: argparse.Namespace,
    argv: Sequence[str],
    bench: str,
    measure: Callable[[], tuple[str, list[Row]]],
) -> int:
    """Measure, print and write one; 1 when it was refused."""
    try:
        device, rows = measure()
    except RuntimeError as refusal:
        print(f"{bench} not reported: {refusal}", file=sys.stderr, flush=True)
        return 1
    report = Report(device, rows, list(argv), options.commit)
    print(report.table())
    print(report.write(options.out, f"{bench}-{rows[0].model}", {}), flush=True)
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

    figures = flood_figures(player, _scene(options), options)
    return f"simulated {costs.name}", rows(options, "fairness", "simulated", figures)


def _real(alone: "Alone", bench: str) -> tuple[str, list[Row]]:
    from engine.bench.batching import Batching
    from engine.bench.churn import Churn
    from engine.bench.entering import Entering
    from engine.bench.shared_prefix import SharedPrefix
    from engine.bench.switches import Switches

    options, figures = alone.options, list[Found]()
    if bench == "fairness":
        figures += Entering(alone).figures()
        figures += flood_figures(alone.player, _scene(options), options)
    elif bench == "churn":
        figures += [*Churn(alone).figures(), *Switches(alone).figures()]
    elif bench == "prefix":
        figures += SharedPrefix(alone).figures()
    else:
        figures += Batching(alone).figures()
    return alone.device, rows(options, bench, alone.model, figures)


def _scene(options: argparse.Namespace) -> Scene:
    return Scene(
        others=options.others, prompt=options.input_len, answer=options.output_len,
        seconds=options.seconds, seed=options.seed,
    )  # fmt: skip


def flood_figures(
    player: Callable[[], Player], scene: Scene, options: argparse.Namespace
) -> list[Found]:
    found = flood(player, scene)
    bound = Fairness(EngineConfig(model="").fairness_quantum).gap_bound(
        options.max_num_seqs, longest_prompt=scene.prompt, longest_answer=scene.answer
    )
    return [
        ("capacity", found.capacity, "requests/s"),
        ("others alone: P95 to first token", 1000 * found.alone_s, "ms"),
        ("others beside a flood: P95 to first token", 1000 * found.flooded_s, "ms"),
        ("slower by the flood (limit 2)", found.slower, "times"),
        ("throughput", found.tokens, "tokens/s"),
        ("throughput, first come first served", found.tokens_in_turn, "tokens/s"),
        ("throughput of first come first served (at least 0.95)", found.throughput, "share"),
        ("bound of the gap in service of two who always wait", bound, "cost"),
    ]


def rows(
    options: argparse.Namespace, bench: str, model: str, figures: Sequence[Found]
) -> list[Row]:
    return [
        Row(
            bench=bench, model=model, format=options.format, rank=options.rank,
            batch=options.max_num_seqs, adapters=options.adapters if bench == "churn" else 0,
            context=options.input_len, metric=metric, value=value, unit=unit,
        )
        for metric, value, unit in figures
    ]  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="loratorio bench", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("bench", nargs="+", choices=BENCHES)
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
    parser.add_argument("--seconds", type=count, default=60, help="each of the flood's four runs")
    parser.add_argument(
        "--long-len", type=count, default=32_768, metavar="TOKENS", help="of the prompt that enters"
    )
    parser.add_argument("--prefix-len", type=count, default=2048, metavar="TOKENS")
    parser.add_argument("--switches", type=count, default=100, metavar="N", help="of an alias")
    parser.add_argument("--switch-seconds", type=amount, default=20.0, metavar="SECONDS")
    parser.add_argument(
        "--rate",
        type=count,
        default=200,
        metavar="N",
        help="requests a second while the alias switches",
    )
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.90, metavar="SHARE")
    parser.add_argument("--rounds", type=count, default=20, metavar="N", help="prompts of prefix")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "loratorio")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    return parser
