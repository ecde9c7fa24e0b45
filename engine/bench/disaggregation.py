"""``loratorio bench disaggregation``: two engines that share the work request by request, against
one that computes prompts for the other, which goes on from their pages.

    loratorio bench disaggregation --shape llama-3.1-8b --seconds 60       two GPUs of this host
    loratorio bench disaggregation --device cpu --shape tiny               two processes on this CPU
    loratorio bench disaggregation --simulate gpu                          no torch, no real time

The same arrivals are played both ways: chats (short prompts, long answers) and documents (long
prompts, short answers), each a Poisson process. Goodput counts requests answered whole, the first
token within ``--ttft-ms``. Nothing is reported unless every request got all of its tokens.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.bench.handed import Players, Run
from engine.bench.pair import EnginePair, PairFailed
from engine.bench.rows import Found, Report, Row, gpu_name
from engine.bench.shapes import FORMATS, SHAPES
from engine.bench.traffic import Arrival, Stream, arrivals, quantile
from engine.config import KvCacheDtype
from engine.flags import Parser, amount, count

WARM_S = 3.0  # of the same traffic, unmeasured, before each run
WAYS = {"co-located": False, "disaggregated": True}


def main(argv: Sequence[str]) -> int:
    """Returns 1 when an engine did not do the work."""
    options = _parser().parse_args(argv)
    if options.device == "cpu":
        options.transport = "tcp"
    try:
        device, runs, moved = _simulated(options) if options.simulate else _real(options)
        figures = figures_of(runs, ttft_s=options.ttft_ms / 1000)
    except (PairFailed, RuntimeError) as refusal:
        print(f"disaggregation not reported: {refusal}", file=sys.stderr)
        return 1
    report = Report(device, rows(options, [*figures, *moved]), ["disaggregation", *argv])
    report.commit = options.commit
    print(report.table())
    name = f"disaggregation-{'simulated' if options.simulate else options.shape}"
    print(report.write(options.out, f"{name}{_suffix(options)}", {}), flush=True)
    return 0


def traffic(options: argparse.Namespace, seconds: float, seed: int) -> list[Arrival]:
    chat = Stream(
        tenant="chat", rate=options.chat_rate, prompt=options.chat_input, answer=options.chat_output
    )
    document = Stream(
        tenant="document", rate=options.document_rate, prompt=options.document_input,
        answer=options.document_output,
    )  # fmt: skip
    return arrivals([chat, document], seconds, seed)


def figures_of(runs: dict[str, Run], *, ttft_s: float) -> list[Found]:
    """Raises RuntimeError where a request did not get its tokens."""
    found, late, good = list[Found](), dict[str, float](), dict[str, float]()
    for way, run in runs.items():
        failed = sum(one.ended_s is None for one in run.answered)
        if failed or not run.answered:
            raise RuntimeError(f"{way}: {failed} of {len(run.answered)} requests failed")
        gaps = [gap for one in run.answered for gap in one.gaps]
        firsts = [one.first_s or 0.0 for one in run.answered]
        late[way] = quantile(gaps, 0.99)
        good[way] = sum(first <= ttft_s for first in firsts) / run.seconds
        found += [
            (f"{way}: between tokens, P50", 1000 * quantile(gaps, 0.5), "ms"),
            (f"{way}: between tokens, P99", 1000 * late[way], "ms"),
            (f"{way}: to the first token, P50", 1000 * quantile(firsts, 0.5), "ms"),
            (f"{way}: to the first token, P99", 1000 * quantile(firsts, 0.99), "ms"),
            (f"{way}: requests", len(run.answered) / run.seconds, "requests/s"),
            (f"{way}: goodput", good[way], "requests/s"),
            (f"{way}: tokens", (len(gaps) + len(firsts)) / run.seconds, "tokens/s"),
        ]
    handed = runs["disaggregated"].answered
    share = sum(one.handed for one in handed) / len(handed)
    return [
        *found,
        ("handed over", share, "share of requests"),
        (
            "between tokens, P99, disaggregated to co-located (limit 0.5)",
            late["disaggregated"] / late["co-located"], "share",
        ),
        (
            "goodput, disaggregated to co-located (at least 0.9)",
            good["disaggregated"] / max(good["co-located"], 1e-9), "share",
        ),
    ]  # fmt: skip


def rows(options: argparse.Namespace, figures: Sequence[Found]) -> list[Row]:
    return [
        Row(
            bench="disaggregation",
            model="simulated" if options.simulate else options.shape,
            format=options.format,
            rank=0,
            batch=options.max_num_seqs,
            adapters=0,
            context=options.document_input,
            metric=metric,
            value=value,
            unit=unit,
            kv="fp8" if options.kv_cache_dtype.narrow else "",
            op="" if options.simulate else options.transport,
        )
        for metric, value, unit in figures
    ]


def _real(options: argparse.Namespace) -> tuple[str, dict[str, Run], list[Found]]:
    gpus = options.device != "cpu"
    return (gpu_name() if gpus else None) or "cpu", *asyncio.run(_measure(options, gpus=gpus))


async def _measure(
    options: argparse.Namespace, *, gpus: bool
) -> tuple[dict[str, Run], list[Found]]:
    model = options.model or _checkpoint(options)
    flags = [
        "--device", "cuda" if gpus else "cpu", "--max-num-seqs", str(options.max_num_seqs),
        "--max-num-batched-tokens", str(max(options.batched_tokens, options.max_num_seqs)),
        "--handoff-bytes", str(options.handoff_bytes), "--max-model-len", str(_longest(options)),
        "--kv-cache-dtype", options.kv_cache_dtype.value,
        *([] if gpus else ["--threads", "1"]),
        *(["--no-handoff-direct"] if options.transport == "tcp" else []),
    ]  # fmt: skip
    _say("starting two engines")
    async with EnginePair(model, flags, gpus=gpus) as pair:
        players = Players(
            pair.clients, least=options.least_tokens, queue_tokens=options.queue_tokens
        )
        runs = {}
        for way, hand in WAYS.items():
            _say(f"{way}: {options.seconds} s")
            await players.play(traffic(options, WARM_S, options.seed + 1), hand=hand)
            wanted = traffic(options, options.seconds, options.seed)
            runs[way] = await players.play(wanted, hand=hand)
        _say("\n".join(pair.logged("engine.handoff.pages")))
        return runs, _moved(await pair.clients[1].metrics())


def _moved(metrics: str) -> list[Found]:
    """What the taker says of all handoffs, those that warmed it too."""
    names = {
        'handoff_bytes_total{by="direct",side="took"}': ("memory to memory", 2.0**-30, "GiB"),
        'handoff_bytes_total{by="tcp",side="took"}': ("by TCP", 2.0**-30, "GiB"),
        'handoff_seconds_sum{side="took"}': ("of handoffs, in all", 1.0, "s"),
        'handoff_seconds_count{side="took"}': ("handoffs that were done, in all", 1.0, "handoffs"),
    }
    found = []
    for line in metrics.splitlines():
        name, _, value = line.removeprefix("loratorio_engine_").rpartition(" ")
        if name in names:
            metric, scale, unit = names[name]
            found.append((metric, scale * float(value), unit))
    return found


def _simulated(options: argparse.Namespace) -> tuple[str, dict[str, Run], list[Found]]:
    from engine.bench.simulated_pair import simulate

    runs = {
        way: simulate(options, traffic(options, options.seconds, options.seed), hand=hand)
        for way, hand in WAYS.items()
    }
    return f"simulated {options.simulate}", runs, []


def _checkpoint(options: argparse.Namespace) -> Path:
    from engine.bench.checkpoints import kept_checkpoint

    return kept_checkpoint(options.cache, SHAPES[options.shape], options.format)


def _longest(options: argparse.Namespace) -> int:
    chat = options.chat_input + options.chat_output
    return int(max(chat, options.document_input + options.document_output))


def _suffix(options: argparse.Namespace) -> str:
    if options.simulate:
        return ""
    return f"-{options.transport}{'-kv-fp8' if options.kv_cache_dtype.narrow else ''}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> Parser:
    parser = Parser(
        prog="loratorio bench disaggregation", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--simulate", choices=("cpu", "gpu"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--transport", choices=("direct", "tcp"), default="direct")
    parser.add_argument("--model", type=Path, metavar="DIR", help="instead of a random checkpoint")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--format", choices=FORMATS, default="awq")
    parser.add_argument(
        "--kv-cache-dtype", type=KvCacheDtype, choices=list(KvCacheDtype), default=KvCacheDtype.AUTO
    )
    parser.add_argument("--max-num-seqs", type=count, default=256, metavar="N")
    parser.add_argument("--batched-tokens", type=count, default=2048, metavar="TOKENS")
    parser.add_argument("--handoff-bytes", type=count, default=1 << 30, metavar="BYTES")
    parser.add_argument("--seconds", type=amount, default=60.0, help="of arrivals, each way")
    parser.add_argument("--chat-rate", type=amount, default=20.0, metavar="PER_SECOND")
    parser.add_argument("--chat-input", type=count, default=256, metavar="TOKENS")
    parser.add_argument("--chat-output", type=count, default=256, metavar="TOKENS")
    parser.add_argument("--document-rate", type=amount, default=3.0, metavar="PER_SECOND")
    parser.add_argument("--document-input", type=count, default=8192, metavar="TOKENS")
    parser.add_argument("--document-output", type=count, default=128, metavar="TOKENS")
    parser.add_argument("--ttft-ms", type=amount, default=2000.0, metavar="MS")
    parser.add_argument(
        "--least-tokens", type=count, default=256, metavar="TOKENS",
        help="of a prompt that is handed over",
    )  # fmt: skip
    parser.add_argument(
        "--queue-tokens", type=count, default=65_536, metavar="TOKENS",
        help="of prompts that wait for the giver, beyond which the taker computes them itself",
    )  # fmt: skip
    parser.add_argument(
        "--link-gbs", type=amount, default=3.0, metavar="GB_PER_S", help="of a simulated network"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "loratorio")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    return parser
