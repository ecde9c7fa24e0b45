"""``loratorio adapter push DIR``: upload an adapter over the network, in parts, and publish it.

Each part travels with its sha256 and whole files are checked at the end. What has arrived is not
sent again: neither after a broken connection nor by a second run of the same command, which finds
the upload by what is in the files.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from adapters.other_layouts import advice
from gateway.cli.adapter_client import AdapterClient, Json, PushFailed
from gateway.cli.bundle import Bundle
from gateway.cli.progress import ByteBar
from gateway.cli.pusher import Pusher
from gateway.cli.table import Row, as_json, as_table

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "LORATORIO_API_KEY"
PART_BYTES = 16 << 20
MOST_PART_BYTES = 64 << 20


def add_push(group: Any) -> None:
    parser = group.add_parser(
        "push", help="upload an adapter to a server and publish it", allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="as PEFT's save_pretrained wrote")
    parser.add_argument("--name", help="of the adapter (default: the directory's)")
    parser.add_argument("--alias", help="moved to the new version once it is ready")
    parser.add_argument("--url", default=DEFAULT_URL, help="of the server (default: %(default)s)")
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help=f"the API key (default: ${KEY_VARIABLE})"
    )
    parser.add_argument("--tenant", metavar="NAME", help="whose it is, with an admin key")
    parser.add_argument("--force", action="store_true", help="although it names another base")
    parser.add_argument("--base-model", default="", metavar="NAME", help="where several fit")
    parser.add_argument("--base-fingerprint", default="", metavar="HASH", help="trained on")
    parser.add_argument(
        "--part-mb", type=_part_mb, default=PART_BYTES >> 20, metavar="MB", help="of each part"
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0: published. 1: refused, with every reason. 2: nothing to push, or no key."""
    try:
        key = _key(arguments)
        bundle = Bundle.of(arguments.folder, arguments.part_mb << 20)
    except OSError as error:
        hints = advice(arguments.folder) if arguments.folder.is_dir() else []
        return _fail(f"{error.filename}: {error.strerror}", 2, tuple(hints))
    if not key:
        return _fail(f"no API key: set ${KEY_VARIABLE} or give --key-file", 2)
    form: Json = {
        "name": arguments.name or arguments.folder.resolve().name,
        "alias": arguments.alias,
        "force": arguments.force,
        "base_model": arguments.base_model,
        "base_fingerprint": arguments.base_fingerprint,
    }
    bar = ByteBar(sys.stderr, bundle.nbytes)
    try:
        with AdapterClient(arguments.url, key, tenant=arguments.tenant, say=bar.say) as client:
            memory = _memory(arguments, form, bundle)
            version = Pusher(client, bundle, bar, memory=memory).push(form)
    except PushFailed as error:
        bar.close()
        return _fail(str(error), 1, error.problems)
    except KeyboardInterrupt:
        bar.close()
        return _fail("interrupted; the same command goes on where this one stopped", 130)
    bar.close()
    _tell(version, arguments)
    return 0


def _tell(version: Json, arguments: argparse.Namespace) -> None:
    report = version["report"] or {}
    canary = report.get("canary") or {}
    row: Row = {
        "model": version["model"],
        "alias": arguments.alias,
        "rank": version["rank"],
        "bytes": version["bytes"],
        "digest": version["digest"][:16],
        "mean_kl": None if canary.get("mean_kl") is None else f"{canary['mean_kl']:.1e}",
    }
    for warning in report.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    print(as_json(row) if arguments.json else as_table([row]))


def _fail(text: str, code: int, problems: tuple[str, ...] = ()) -> int:
    print(f"loratorio: error: {text}", file=sys.stderr)
    for problem in problems:
        print(f"  {problem}", file=sys.stderr)
    return code


def _key(arguments: argparse.Namespace) -> str:
    if arguments.key_file is not None:
        found: str = arguments.key_file.read_text("utf-8").strip()
        return found
    return str(arguments.process_environment.get(KEY_VARIABLE, "")).strip()


def _memory(arguments: argparse.Namespace, form: Json, bundle: Bundle) -> Path:
    """One file for each upload to each server: its name says all that must be the same."""
    words = [arguments.url, arguments.tenant, form, bundle.identity]
    name = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:32]
    home = arguments.process_environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "loratorio" / "uploads" / name


def _part_mb(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_PART_BYTES >> 20:
        raise argparse.ArgumentTypeError(f"{text!r}: from 1 to {MOST_PART_BYTES >> 20} megabytes")
    return int(text)
