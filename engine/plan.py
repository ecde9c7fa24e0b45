"""``loratorio plan``: what fits on a GPU, before there is one. Torch-free.

Weights are counted as the engine keeps them on CUDA: 4-bit modules packed, with scales, zeros and
the word per group and column that the Hopper kernel reads, padded to whole tiles; everything else
in 16 bits, norms in 32. Pages come from the arithmetic the engine itself uses. What a forward pass
needs beside them is estimated here from the token budget; an engine measures it at start, and
then says what it found in the same words. The step time is the roofline's: nothing can be faster,
the engine is slower.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from engine.bench.floor import DEVICES, Device, Precision, Work, decode_floor, narrow_adapter
from engine.bench.shapes import FORMATS, SHAPES, Shape
from engine.config import AdapterDtype, EngineConfig, HeadDtype, KvCacheDtype
from engine.errors import EngineError
from engine.flags import Parser, amount, count
from engine.models.spec import ModelSpec
from engine.page_size import (
    GRAPH_BYTES,
    ITEM,
    MAGNITUDE,
    adapter_pages,
    page_elements,
    pages_of_tokens,
)
from engine.placement import BlockTooLarge
from engine.stored_weights import (
    StoredWeights,
    narrow_head_error,
    of_checkpoint,
    of_shape,
    with_narrow_head,
)

CONTEXT = 4096  # tokens, where it is not said
CONTEXT_BYTES = 600 << 20  # the CUDA context, libraries and compiled kernels
GIB = 1 << 30
DEFAULTS = EngineConfig(model="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for."""

    gpu: str
    context: int  # tokens of each sequence
    adapters: int
    rank: int
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO
    head_dtype: HeadDtype = HeadDtype.AUTO
    adapter_dtype: AdapterDtype = AdapterDtype.AUTO
    page_tokens: int = DEFAULTS.page_tokens
    max_num_seqs: int = DEFAULTS.max_num_seqs
    max_num_batched_tokens: int = DEFAULTS.max_num_batched_tokens
    utilization: float = DEFAULTS.gpu_memory_utilization
    members: int = 1  # devices that compute the model together


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bytes, pages and counts, of each device where there are several.

    ``missing_bytes`` 0 means that one sequence at least fits.
    """

    budget_bytes: int  # the share of the device that the engine may take
    weights_bytes: int
    pass_bytes: int  # activations, logits, graphs and context: an estimate
    page_bytes: int
    pages: int  # of the pool
    adapter_pages: int  # of one adapter
    adapters_pages: int  # of all that were asked for
    adapters_fit: int  # how many the pool holds beside one sequence
    kv_tokens: int  # left for sequences when all adapters are in
    sequences: int  # at that context, all adapters in
    step_rows: int  # sequences of one forward pass: at most max_num_seqs
    step_ms: float | None  # floor of a decode step of step_rows; None: nothing runs
    tokens_per_s: float | None  # the most that can come of such steps
    missing_bytes: int
    head_error: float | None = None  # of an int8 head's weights, by their size; None: not looked at


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    budget: int  # that the engine may take
    weights: int
    passes: int  # activations, logits, graphs and context


class PlanInvalid(EngineError):
    """The question cannot be answered as asked."""


def plan(spec: ModelSpec, weights: StoredWeights, wish: Wish, device: Device) -> Plan:
    """Raises PlanInvalid when an adapter's rank fits no page."""
    budget = int(wish.utilization * device.memory)
    return divide(spec, wish, Memory(budget, weights.nbytes, pass_bytes(spec, wish)),
                  device, weights.precision)  # fmt: skip


def divide(
    spec: ModelSpec, wish: Wish, memory: Memory, device: Device | None, precision: Precision
) -> Plan:
    """Share out what weights and passes leave. Raises PlanInvalid."""
    narrow = wish.kv_cache_dtype.narrow
    elements = page_elements(spec, wish.page_tokens, narrow=narrow)
    page_bytes = elements * ITEM
    if narrow:
        precision = replace(precision, kv=1 + MAGNITUDE / spec.head_dim)
    coded = wish.adapter_dtype.codes is not None
    if coded:
        precision = replace(precision, adapter=narrow_adapter(wish.rank))
    try:
        each = adapter_pages(spec, wish.rank, elements, narrow=coded) if wish.adapters else 0
    except BlockTooLarge as error:
        raise PlanInvalid(f"an adapter of rank {wish.rank}: {error}; use larger pages") from error
    room = memory.budget - memory.weights - memory.passes
    pages = max(room // page_bytes, 0)
    one = pages_of_tokens(wish.context, wish.page_tokens)
    left = pages - each * wish.adapters
    sequences = max(left // one, 0)
    rows = min(sequences, wish.max_num_seqs)
    work = Work(rows=rows, context=wish.context, adapters=wish.adapters, rank=wish.rank)
    step = (
        decode_floor(_shape(spec, wish.members), work, device, precision)
        if rows and device
        else None
    )
    return Plan(
        budget_bytes=memory.budget,
        weights_bytes=memory.weights,
        pass_bytes=memory.passes,
        page_bytes=page_bytes,
        pages=pages,
        adapter_pages=each,
        adapters_pages=each * wish.adapters,
        adapters_fit=max((pages - one) // each, 0) if each else 0,
        kv_tokens=max(left, 0) * wish.page_tokens,
        sequences=sequences,
        step_rows=rows,
        step_ms=step * 1e3 if step else None,
        tokens_per_s=rows / step if step else None,
        missing_bytes=max((each * wish.adapters + one) * page_bytes - room, 0),
    )


def pass_bytes(spec: ModelSpec, wish: Wish) -> int:
    """What the largest forward pass takes beside weights and pages.

    The widest moment of a layer for every token of the budget, the widest matrix dequantised for
    long prompts, float32 logits of every sequence with the copies that sampling sorts.
    """
    inner, hidden = spec.intermediate_size, spec.hidden_size
    tokens = wish.max_num_batched_tokens * (3 * inner + 4 * hidden) * ITEM
    dequantised = 2 * inner * hidden * ITEM
    logits = wish.max_num_seqs * spec.vocab_size * 4 * 6
    return max(tokens + dequantised, logits) + GRAPH_BYTES + CONTEXT_BYTES


def _shape(spec: ModelSpec, members: int) -> Shape:
    """Of what each device reads and computes."""
    return Shape(
        name="", model_type="", architecture=spec.architecture,
        vocab_size=-(-spec.vocab_size // members),
        hidden_size=spec.hidden_size, intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers, num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads, head_dim=spec.head_dim,
    )  # fmt: skip


def describe(found: Plan, wish: Wish, *, measured: bool = False) -> str:
    """For people. ``measured``: by an engine that has its memory."""
    pool = found.pages * found.page_bytes
    lines = [
        f"memory for the engine   {_gib(found.budget_bytes)}  "
        f"({wish.utilization:.0%} of {wish.gpu}{_each(wish)})",
        f"weights                 {_gib(found.weights_bytes)}",
        f"passes ({'measured' if measured else 'estimate'})       {_gib(found.pass_bytes)}",
        f"page pool               {_gib(pool)}  {found.pages} pages of {wish.page_tokens} tokens, "
        f"{found.page_bytes / 2**20:.2f} MiB each",
    ]
    if found.head_error is not None:
        lines.insert(2, f"head in int8            weights off by {found.head_error:.2%}")
    if wish.adapters:
        codes = wish.adapter_dtype.codes
        kept = f" in {codes}" if codes else ""
        lines.append(
            f"adapters                {_gib(found.adapters_pages * found.page_bytes)}  "
            f"{wish.adapters} of rank {wish.rank}{kept}, {found.adapter_pages} pages each; "
            f"the pool holds at most {found.adapters_fit}"
        )
    kind = ", keys and values in 8 bits" if wish.kv_cache_dtype.narrow else ""
    lines.append(f"left for sequences      {found.kv_tokens} tokens{kind}")
    if found.missing_bytes:
        lines.append(f"DOES NOT FIT: {_shortage(found, wish)}")
        return "\n".join(lines)
    lines.append(f"sequences of {wish.context} tokens  {found.sequences} at once")
    if found.step_ms is None:
        return "\n".join(lines)
    lines.append(
        f"decode step             {found.step_ms:.2f} ms at best with {found.step_rows} sequences "
        f"of that length: {found.tokens_per_s:.0f} tokens/s"
    )
    return "\n".join(lines)


def _each(wish: Wish) -> str:
    return f", of each of {wish.members}, as all below" if wish.members > 1 else ""


def _shortage(found: Plan, wish: Wish) -> str:
    missing = _gib(found.missing_bytes).strip()
    if found.weights_bytes + found.pass_bytes > found.budget_bytes:
        return f"weights and passes alone exceed the memory; {missing} are missing in all"
    beside = f" beside {wish.adapters} adapters of rank {wish.rank}" if wish.adapters else ""
    return f"one sequence of {wish.context} tokens{beside} needs {missing} more"


def _gib(count: int) -> str:
    return f"{count / GIB:8.2f} GiB"


def main(argv: Sequence[str]) -> int:
    """Returns 1 when not even one sequence fits. Raises EngineError."""
    options = _parser().parse_args(argv)
    names = ("gpu", "adapters", "rank", "kv_cache_dtype", "head_dtype",
             "adapter_dtype", "page_tokens",
             "max_num_seqs", "max_num_batched_tokens", "utilization", "members")  # fmt: skip
    wish = Wish(context=CONTEXT, **{name: getattr(options, name) for name in names})
    spec, weights = _model(options.model, options.format, wish.members)
    wish = replace(wish, context=_context(options.context, spec))
    error = None
    if wish.head_dtype == HeadDtype.INT8:
        weights = with_narrow_head(spec, weights, wish.members)
        path = Path(options.model)
        error = narrow_head_error(path, spec) if path.is_dir() else None
    found = replace(plan(spec, weights, wish, DEVICES[wish.gpu]), head_error=error)
    print(json.dumps(asdict(found), indent=1) if options.json else describe(found, wish))
    return int(found.missing_bytes > 0)


def _parser() -> Parser:
    parser = Parser(
        prog="loratorio plan", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help=f"a directory, or {', '.join(SHAPES)}")
    parser.add_argument("--format", choices=FORMATS, default="awq", help="of a named shape")
    parser.add_argument("--gpu", choices=DEVICES, default="h200")
    parser.add_argument(
        "--tensor-parallel-size", dest="members", type=count, default=1, metavar="N",
        help="GPUs that compute the model together",
    )  # fmt: skip
    parser.add_argument(
        "--context", type=count, metavar="TOKENS",
        help=f"of each sequence; {CONTEXT}, or what the model can, where it is not given",
    )  # fmt: skip
    parser.add_argument("--adapters", type=_adapters, default=0, metavar="N")
    parser.add_argument("--rank", type=count, default=16)
    d = DEFAULTS
    parser.add_argument(
        "--kv-cache-dtype", type=KvCacheDtype, choices=list(KvCacheDtype), default=d.kv_cache_dtype
    )
    parser.add_argument(
        "--head-dtype", type=HeadDtype, choices=list(HeadDtype), default=d.head_dtype
    )
    parser.add_argument(
        "--adapter-dtype", type=AdapterDtype, choices=list(AdapterDtype), default=d.adapter_dtype
    )
    parser.add_argument("--block-size", dest="page_tokens", type=count, default=d.page_tokens)
    parser.add_argument("--max-num-seqs", type=count, default=d.max_num_seqs)
    parser.add_argument("--max-num-batched-tokens", type=count, default=d.max_num_batched_tokens)
    parser.add_argument(
        "--gpu-memory-utilization", dest="utilization", type=amount, metavar="SHARE",
        default=d.gpu_memory_utilization,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true")
    return parser


def _context(wanted: int | None, spec: ModelSpec) -> int:
    if wanted is None:
        return min(CONTEXT, spec.max_position)
    if wanted > spec.max_position:
        raise PlanInvalid(f"--context {wanted} exceeds the model's own {spec.length_limit}")
    return wanted


def _adapters(text: str) -> int:
    return 0 if text == "0" else count(text)


def _model(name: str, fmt: str, members: int) -> tuple[ModelSpec, StoredWeights]:
    path = Path(name)
    if path.is_dir():
        return of_checkpoint(path, members)
    if name in SHAPES:
        return of_shape(SHAPES[name], fmt, members)
    raise PlanInvalid(f"{name}: neither a directory nor one of {', '.join(SHAPES)}")
