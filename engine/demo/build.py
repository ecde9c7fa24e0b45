"""Makes the demo base: SmolLM2-135M-Instruct as a real 4-bit GPTQ checkpoint.

One pass over the model: the calibration text flows through the layers in float32, and each
projection is quantised just before it is used, so later layers are calibrated on what the
quantised earlier ones really produce. Perplexity of source and result is measured on held-out
text, the result's from the files as written.

The output directory appears by rename: it is complete or it is not there.
"""

import argparse
import fcntl
import json
import math
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from engine.demo import corpus
from engine.demo.llama import Llama, Shape
from engine.demo.progress import Progress, ProgressBar
from engine.demo.source import GGUF_SHA256, fetch
from engine.errors import EngineError
from engine.quant import gptq
from engine.quant.gguf import GgufCheckpoint, Json

GROUP = 32
# A small model wanders at temperature 1; this is what its makers answer with.
SAMPLING = {"temperature": 0.2, "top_p": 0.9}
REPORT_NAME = "build_report.json"
_PACKED = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True, slots=True)
class BuildReport:
    perplexity: float  # of the 4-bit checkpoint
    reference_perplexity: float  # of the GGUF's weights in float32, on the same text
    seconds: float  # download excluded
    source_sha256: str = GGUF_SHA256

    def __str__(self) -> str:
        ratio = self.perplexity / self.reference_perplexity
        return (
            f"perplexity {self.perplexity:.2f}, source {self.reference_perplexity:.2f} "
            f"({ratio:.3f}x), made in {self.seconds:.0f} s"
        )


def build(out: Path, cache: Path, progress: Progress) -> BuildReport:
    """Make the checkpoint at ``out``, replacing what is there; sources are kept in ``cache``."""
    progress("Finding the demo model", 0.0)
    source = fetch(cache)
    progress("Finding the demo model", 1.0)
    return convert(source, out, progress)


def convert(source: Path, out: Path, progress: Progress) -> BuildReport:
    """The same from a GGUF file at hand. What another build made of ``out`` meanwhile is taken."""
    out.parent.mkdir(parents=True, exist_ok=True)
    before = _written(out)
    with _alone(out):
        if is_built(out) and _written(out) != before:
            return BuildReport(**json.loads((out / REPORT_NAME).read_text()))
        scratch = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
        scratch.chmod(0o755)
        try:
            report = _write_checkpoint(GgufCheckpoint(source), scratch, progress)
            _replace(out, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return report


def is_built(out: Path) -> bool:
    """Whether ``out`` holds a finished checkpoint made from this source."""
    try:
        report = json.loads((out / REPORT_NAME).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.get("source_sha256") == GGUF_SHA256


def _written(out: Path) -> tuple[int, int] | None:
    """Tells one build from another; None where there is none."""
    try:
        found = (out / REPORT_NAME).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def dequantised_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Dense float32 weights of a checkpoint written by ``build``, by Hugging Face name."""
    tensors = load_file(checkpoint / "model.safetensors")
    dense: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "qweight":
            packed = {part: tensors[f"{module}.{part}"] for part in _PACKED}
            dense[f"{module}.weight"] = gptq.unpack(packed).dequantise()
        elif part not in _PACKED:
            dense[name] = tensor.float()
    return dense


@torch.inference_mode()
def _write_checkpoint(source: GgufCheckpoint, out: Path, progress: Progress) -> BuildReport:
    started = time.perf_counter()
    progress("Reading the source", 0.0)
    config, shape = source.config(), Shape.of(source.config())
    tokenizer = _write_text_files(source, config, out)
    weights = {name: torch.from_numpy(weight.copy()) for name, weight in source.tensors()}
    progress("Reading the source", 1.0)
    held_out = corpus.evaluation(tokenizer)
    reference = perplexity(
        Llama(shape, weights), held_out, lambda done: progress("Scoring the source", done)
    )
    tensors = _quantise(
        Llama(shape, weights),
        corpus.calibration(tokenizer),
        lambda done: progress("Quantising to 4 bits", done),
    )
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors creates it for the owner alone
    result = perplexity(
        Llama(shape, dequantised_weights(out)),
        held_out,
        lambda done: progress("Scoring the result", done),
    )
    report = BuildReport(result, reference, time.perf_counter() - started)
    _write_json(out / REPORT_NAME, asdict(report))
    return report


def _quantise(
    model: Llama, tokens: torch.Tensor, progress: Callable[[float], None]
) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors. Leaves ``model`` with the weights it dequantises to."""
    weights = model.weights
    tensors: dict[str, torch.Tensor] = {}

    def before(names: list[str], x: torch.Tensor) -> None:
        rows = x.flatten(0, -2)
        fused = torch.cat([weights[name] for name in names])
        quantised = gptq.quantise(fused, rows.t() @ rows / len(rows), group=GROUP)
        sizes = [len(weights[name]) for name in names]
        dense = torch.split(quantised.dequantise(), sizes)
        for name, part, weight in zip(names, quantised.split(sizes), dense, strict=True):
            weights[name] = weight
            module = name.removesuffix("weight")
            tensors.update({module + key: value for key, value in gptq.pack(part).items()})

    model.hidden(
        tokens,
        before=before,
        after_layer=lambda layer: progress((layer + 1) / model.shape.layers),
    )
    kept = {name: w.half() for name, w in weights.items() if not name.endswith("_proj.weight")}
    return tensors | kept


def perplexity(model: Llama, tokens: torch.Tensor, progress: Callable[[float], None]) -> float:
    """exp of the mean negative log-likelihood of every token of [B, T] but the first."""
    total = 0.0
    for done, row in enumerate(tokens):
        logits = model.logits(model.hidden(row[None])[0, :-1])
        total += functional.cross_entropy(logits, row[1:], reduction="sum").item()
        progress((done + 1) / len(tokens))
    return math.exp(total / tokens[:, 1:].numel())


def _write_text_files(source: GgufCheckpoint, config: Json, out: Path) -> tokenizers.Tokenizer:
    quantisation: Json = {
        "quant_method": "gptq",
        "bits": gptq.BITS,
        "group_size": GROUP,
        "desc_act": True,
        "sym": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
    }
    text = source.tokenizer()
    _write_json(out / "config.json", {**config, "quantization_config": quantisation})
    _write_json(out / "generation_config.json", {**source.generation_config(), **SAMPLING})
    _write_json(out / "tokenizer.json", text.tokenizer)
    _write_json(out / "tokenizer_config.json", text.config)
    (out / "chat_template.jinja").write_text(text.chat_template, encoding="utf-8")
    return tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the lock beside ``out``, and clear away what killed builds left behind."""
    with (out.parent / f".{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch = re.compile(rf"\.{re.escape(out.name)}-[a-z0-9_]{{8}}")  # as mkdtemp names it
        for found in list(out.parent.iterdir()):
            if scratch.fullmatch(found.name):
                shutil.rmtree(found, ignore_errors=True)
        yield


def _replace(out: Path, finished: Path) -> None:
    if out.exists():
        retired = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
        out.rename(retired / out.name)
        finished.rename(out)
        shutil.rmtree(retired)
    else:
        finished.rename(out)


def main(argv: list[str]) -> int:
    """``python -m engine demo OUT``: build, and print what it is worth."""
    parser = argparse.ArgumentParser(prog="python -m engine demo", description=__doc__)
    parser.add_argument("out", type=Path, help="directory of the checkpoint")
    parser.add_argument("--cache", type=Path, help="where the source is kept (OUT/../downloads)")
    options = parser.parse_args(argv)
    bar = ProgressBar(sys.stderr)
    try:
        report = build(options.out, options.cache or options.out.parent / "downloads", bar)
    except (EngineError, OSError) as error:
        bar.close()
        sys.stderr.write(f"error: {error}\n")
        return 1
    bar.close()
    sys.stdout.write(f"{options.out}: {report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
