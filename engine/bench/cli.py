"""``loratorio bench``: measure an engine alone, its operations, or a server over HTTP.

    decode, prefill, mixed     an engine alone, without sockets
    held                       decode steps whose answers a grammar holds, beside free ones
    speculation                passes that verify drafts, over plain ones; when that pays
    linear, lora, attention    one layer's operations
    all                        decode to attention but held and speculation, one after the other
    serve                      a running server over HTTP, from this machine
    fairness, churn, prefix,
    batching                   what tenants and adapters do to each other, an engine alone
    disaggregation             prompts at one engine and answers at another, beside both at both
    start                      from nothing to serving, phase by phase; the engine serves and ends
    waste                      the empty end of a sequence's last page, by page size

Results go to bench/results/<device>/*.json; waste is printed alone. The first four lines show ours,
the best stored peer on the same device and the floor from bytes and operations, and nothing before
the results were compared with the definition: logits in float32, or each operation's reference.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.bench.shapes import FORMATS, SHAPES
from engine.config import AdapterDtype, HeadDtype, KvCacheDtype
from engine.flags import Parser, count

ENGINE = ("decode", "prefill", "mixed", "held", "speculation")
OPERATIONS = ("linear", "lora", "attention")
ALL = (*ENGINE[:3], *OPERATIONS)
ALONE = (*ENGINE, *OPERATIONS, "all")
TENANTS = ("fairness", "churn", "prefix", "batching")
OTHERS = ("serve", "start", "waste", "disaggregation", *TENANTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    bench: str
    shape: str
    format: str
    rank: int
    kv_cache_dtype: KvCacheDtype
    head_dtype: HeadDtype
    adapter_dtype: AdapterDtype
    eager: bool
    tensor_parallel_size: int
    disable_custom_all_reduce: bool
    layers: int | None  # of the shape, the first so many; None: all
    cache: Path
    out: Path
    mixes: tuple[tuple[int, int], ...] | None  # (rows, adapters); None: the bench's own
    commit: str | None
    arguments: tuple[str, ...]  # as given

    @property
    def benches(self) -> tuple[str, ...]:
        return ALL if self.bench == "all" else (self.bench,)


def main(argv: Sequence[str]) -> int:
    """Returns the process's exit code; 1 when results were not right. torch is imported here."""
    if argv and argv[0] == "serve":
        from engine.bench.serve import main as serve

        return serve(argv[1:])
    if argv and argv[0] == "start":
        from engine.bench.start import main as start

        return start(argv[1:])
    if argv and argv[0] == "waste":
        from engine.bench.waste import main as waste

        return waste(argv[1:])
    if argv and argv[0] == "disaggregation":
        from engine.bench.disaggregation import main as disaggregation

        return disaggregation(argv[1:])
    if argv and argv[0] in TENANTS:
        from engine.bench.tenants import main as tenants

        return tenants(argv)
    options = parse(argv)
    from engine.bench.measure import measure

    return measure(options)


def parse(argv: Sequence[str]) -> Options:
    """Exits on wrong flags, as argparse does."""
    parser = Parser(
        prog="loratorio bench", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("bench", choices=(*ALONE, *OTHERS))
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--format", choices=FORMATS, default="awq")
    parser.add_argument("--rank", type=count, default=16)
    parser.add_argument(
        "--kv-cache-dtype", type=KvCacheDtype, choices=list(KvCacheDtype), default=KvCacheDtype.AUTO
    )
    parser.add_argument(
        "--head-dtype", type=HeadDtype, choices=list(HeadDtype), default=HeadDtype.AUTO
    )
    parser.add_argument(
        "--adapter-dtype", type=AdapterDtype, choices=list(AdapterDtype), default=AdapterDtype.AUTO
    )
    parser.add_argument("--enforce-eager", dest="eager", action="store_true")
    parser.add_argument(
        "--tensor-parallel-size", type=count, default=1, metavar="N",
        help="GPUs that compute the model together",
    )  # fmt: skip
    parser.add_argument("--disable-custom-all-reduce", action="store_true")
    parser.add_argument("--layers", type=count, metavar="N", help="of the shape, the first N alone")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "loratorio")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--mixes", nargs="+", metavar="ROWSxADAPTERS", help="e.g. 1x0 64x64")
    parser.add_argument("--commit", help="what is measured, where there is no git checkout")
    found = parser.parse_args(argv)
    if found.bench in OTHERS:
        parser.error(f"{found.bench} comes first: loratorio bench {found.bench} ...")
    try:
        mixes = None if found.mixes is None else tuple(_mix(text) for text in found.mixes)
    except ValueError:
        parser.error(f"--mixes {' '.join(found.mixes)}: expected ROWSxADAPTERS, e.g. 64x16")
    return Options(**{**vars(found), "mixes": mixes, "arguments": tuple(argv)})


def _mix(text: str) -> tuple[int, int]:
    """Raises ValueError."""
    rows, _, adapters = text.partition("x")
    return int(rows), int(adapters)
