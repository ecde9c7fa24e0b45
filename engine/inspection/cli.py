"""``loratorio inspect PATH``: what a checkpoint or an adapter is, and whether it will be served.

Exit code 0: it will be; 1: it will not, and the reasons are listed; 2: there is nothing to look at.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from adapters.errors import BaseUnreadable
from engine.demo.progress import ProgressBar
from engine.flags import Parser
from engine.inspection.finding import Finding

FORMATS = "served are safetensors: plain, GPTQ, AWQ, compressed-tensors and fp8"
OTHERS = {  # by the end of a file's name
    ".gguf": ("GGUF model", f"GGUF is not read; {FORMATS}"),
    ".bin": ("pickle", f"pickles run code when they are read; {FORMATS}"),
    ".pt": ("pickle", f"pickles run code when they are read; {FORMATS}"),
    ".pth": ("pickle", f"pickles run code when they are read; {FORMATS}"),
    ".ckpt": ("pickle", f"pickles run code when they are read; {FORMATS}"),
    ".zip": ("archive", "archives are not read: unpack it and inspect the directory"),
    ".tar": ("archive", "archives are not read: unpack it and inspect the directory"),
    ".gz": ("archive", "archives are not read: unpack it and inspect the directory"),
    ".safetensors": ("one file of tensors", "inspect the directory that holds its config"),
}


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="loratorio inspect", description=__doc__, allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="PATH", help="a checkpoint or an adapter")
    parser.add_argument(
        "--base", type=Path, metavar="DIR", help="whether the adapter fits this checkpoint"
    )
    parser.add_argument("--force", action="store_true", help="although it names another base")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    options = parser.parse_args(argv)
    if not options.path.exists():
        sys.stderr.write(f"error: {options.path}: no such file or directory\n")
        return 2
    bar = ProgressBar(sys.stderr)
    try:
        found = inspect(options.path, options.base, bar, force=options.force)
    except BaseUnreadable as error:
        sys.stderr.write(f"error: --base: {error}\n")
        return 2
    finally:
        bar.close()
    sys.stdout.write((found.as_json() if options.json else found.as_text()) + "\n")
    return 0 if found.served else 1


def inspect(path: Path, base: Path | None, bar: ProgressBar, *, force: bool = False) -> Finding:
    """Raises BaseUnreadable."""
    if not path.is_dir():
        kind, reason = OTHERS.get(path.suffix.lower(), ("file", f"unknown kind; {FORMATS}"))
        return Finding(kind=kind, path=str(path), facts={}, reasons=[reason])
    if any(path.glob("adapter_config.json")) or any(path.glob("adapter_model.*")):
        from engine.inspection.adapter import inspect_adapter, read_base

        return inspect_adapter(path, read_base(base) if base else None, force=force)
    if (path / "config.json").exists() or any(path.glob("*.safetensors")):
        from engine.inspection.checkpoint import inspect_checkpoint  # needs torch

        return inspect_checkpoint(path, bar)
    found = sorted(OTHERS[each.suffix] for each in path.iterdir() if each.suffix in OTHERS)
    kind, reason = found[0] if found else ("directory", "")
    expected = "neither config.json nor adapter_config.json is here"
    return Finding(
        kind=kind, path=str(path), facts={}, reasons=[text for text in (expected, reason) if text]
    )
