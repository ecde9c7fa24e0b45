"""``loratorio quantize MODEL --format gptq|awq``: a 4-bit checkpoint that we serve, and its price.

GPTQModel does the work, in a process of its own (``job.py``). What it wrote is loaded as an engine
would load it, and compared with the source by our own loader; the report lies beside the weights.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer

from adapters.language_part import sees
from engine.checkpoint import Checkpoint
from engine.demo.progress import ProgressBar
from engine.errors import CheckpointInvalid, ConfigError, EngineError
from engine.flags import Parser
from engine.inspection.checkpoint import inspect_checkpoint
from engine.models.spec import ModelSpec
from engine.quant.schemes import BITS, GROUPS
from engine.quantiser.job import Job, QuantiserFailed, require, run
from engine.quantiser.quality import Quality, compare
from engine.quantiser.texts import calibration_text, evaluation_text, token_rows

REPORT = "quantize_report.json"
TEXT_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    bar = ProgressBar(sys.stderr)
    try:
        quality = quantize(options, bar)
    except (EngineError, OSError) as error:
        bar.close()
        sys.stderr.write(f"error: {error}\n")
        return 1
    bar.close()
    sys.stdout.write(f"{options.out}: {quality}\n")
    return 0


def quantize(options: argparse.Namespace, bar: ProgressBar) -> Quality:
    """Raises EngineError; leaves ``options.out`` whole or not there."""
    checkpoint = Checkpoint(options.model)
    _check(checkpoint, options)
    learn, judge = calibration_text(options.calibration), evaluation_text(options.evaluation)
    require(options.python)
    tokenizer = _tokenizer(options.model)
    out: Path = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.with_name(f"{out.name}.log")
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        draft = Path(scratch) / "checkpoint"
        job = Job(
            model=str(options.model.resolve()),
            out=str(draft.resolve()),
            method=options.format,
            bits=options.bits,
            group=options.group_size,
            symmetric=options.sym,
            act_order=options.desc_act,
            calibration=token_rows(tokenizer, learn),
        )
        bar.close()
        sys.stderr.write(f"GPTQModel at work; what it says is in {log}\n")
        run(job, python=options.python, log=log)
        _complete(draft, options.model)
        quality = _judge(draft, options.model, token_rows(tokenizer, judge), bar)
        report = {**asdict(quality), "settings": _settings(job)}
        (draft / REPORT).write_text(json.dumps(report, indent=2) + "\n")
        draft.rename(out)
    log.unlink(missing_ok=True)
    return quality


def _check(checkpoint: Checkpoint, options: argparse.Namespace) -> None:
    """Everything that can be known before minutes of work. Raises EngineError."""
    if sees(checkpoint.whole_config):
        raise ConfigError(f"{options.model}: has a tower for images; give a model of text alone")
    if checkpoint.config.get("quantization_config"):
        raise ConfigError(f"{options.model}: is quantised already; give the dense checkpoint")
    spec = ModelSpec.read(checkpoint.config)
    if options.format == "awq" and options.bits != 4:
        raise ConfigError(f"--bits {options.bits}: AWQ checkpoints are served with 4 bits")
    if options.format == "awq" and options.desc_act:
        raise ConfigError("--desc-act: AWQ has no act-order; leave it out")
    _check_group(spec, options.group_size)
    if options.out is None:
        size = f"g{options.group_size}" if options.group_size > 0 else "channel"
        name = f"{options.model.resolve().name}-{options.format}-{options.bits}bit-{size}"
        options.out = options.model.resolve().with_name(name)
    if options.out.exists():
        raise ConfigError(f"--out {options.out} exists; remove it, or name another directory")


def _check_group(spec: ModelSpec, group: int) -> None:
    """Raises ConfigError for one that does not divide the inputs of every linear layer."""
    widths = {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads x head_dim": spec.query_size,
    }
    fitting = [g for g in GROUPS if g < 0 or not any(width % g for width in widths.values())]
    for name, width in widths.items():
        if group not in fitting and width % group:
            possible = ", ".join(map(str, fitting))
            raise ConfigError(
                f"--group-size {group} does not divide {name} = {width}; possible here: {possible}"
            )


def _tokenizer(model: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception as error:  # the library raises nothing more special
        raise CheckpointInvalid(f"{model / 'tokenizer.json'}: {error}") from error


def _complete(draft: Path, model: Path) -> None:
    """The text files as they were: what the quantiser writes of them is its own reading."""
    for name in TEXT_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, draft / name)


def _judge(draft: Path, model: Path, rows: list[list[int]], bar: ProgressBar) -> Quality:
    """Raises QuantiserFailed when an engine would not load it."""
    found = inspect_checkpoint(draft, bar)
    if not found.served:
        raise QuantiserFailed(f"what was written would not be served: {'; '.join(found.reasons)}")
    return compare(model, draft, rows, lambda done: bar("Comparing with the source", done))


def _settings(job: Job) -> dict[str, object]:
    return {
        "format": job.method,
        "bits": job.bits,
        "group_size": job.group,
        "sym": job.symmetric,
        "desc_act": job.act_order,
        "calibration_tokens": sum(map(len, job.calibration)),
    }


def _parser() -> Parser:
    parser = Parser(prog="loratorio quantize", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", type=Path, metavar="MODEL", help="a dense checkpoint's directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: beside MODEL")
    parser.add_argument("--format", required=True, choices=["gptq", "awq"])
    parser.add_argument("--bits", type=int, default=4, choices=list(BITS))
    parser.add_argument(
        "--group-size", type=int, default=128, choices=list(GROUPS), help="-1: whole columns"
    )
    parser.add_argument("--desc-act", action="store_true", help="GPTQ's act-order: better, slower")
    parser.add_argument("--sym", action="store_true", help="zeros in the middle: smaller, worse")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="text, or .jsonl with text fields; yours"
    )
    parser.add_argument("--evaluation", type=Path, metavar="FILE", help="held-out text, likewise")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="one that has gptqmodel"
    )
    return parser
