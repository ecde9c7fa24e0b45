"""What must be there before the programs start: the model, the database, projects and adapters.

Everything is made once and found again by the next start. ``loratorio prepare`` does what is
needed where something else than ``serve`` starts the programs.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path

import msgspec

from adapters.base_spec import BaseSpec
from adapters.errors import BaseUnreadable
from gateway.bootstrap import Access, ensure_demo, ensure_tenants
from gateway.cli.child import die_with_parent, our_environment
from gateway.cli.console import Console
from gateway.cli.desk import Commands, Desk, add_command
from gateway.cli.preflight import CannotServe
from gateway.cli.ready import write_private
from gateway.cli.serve_options import ServeOptions
from gateway.cli.table import Row
from gateway.config import ConfigError, Settings
from gateway.db import DatabaseUnavailable
from gateway.errors import GatewayError

DEMO_MODEL = "smollm2-135m-instruct"
DEMO_REPORT = "build_report.json"  # what the builder writes last
DEFAULT_TENANT = "default"  # owns what --lora-modules names
DEMO_TENANT = "acme"  # the first of the demo's


def demo_model(data_dir: Path, console: Console) -> Path:
    """The demo checkpoint's directory, made if it is not there. Raises CannotServe."""
    out = data_dir / "demo" / DEMO_MODEL
    if (out / DEMO_REPORT).is_file():
        return out
    console.say("making the demo model, SmolLM2-135M-Instruct in 4 bits: once, about a minute")
    built = subprocess.run(  # noqa: S603  our own program
        [sys.executable, "-m", "engine", "demo", str(out)],
        env=our_environment(),
        check=False,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    if built.returncode:
        raise CannotServe(f"the demo model could not be made (exit code {built.returncode})")
    return out


def demo_adapters() -> dict[str, Path]:
    """The adapters that ship with the demo, by name."""
    folder = Path(str(resources.files("engine.demo") / "adapters"))
    found = sorted(path.parent for path in folder.glob("*/adapter_config.json"))
    return {path.name: path for path in found}


def write_base_spec(model: Path, file: Path) -> None:
    """What adapters are checked against where no engine is asked. Raises BaseUnreadable."""
    base = BaseSpec.from_checkpoint(model)
    write_private(file, msgspec.json.format(msgspec.json.encode(base)) + b"\n")


def ensure_access(options: ServeOptions, settings: Settings) -> Access:
    """Migrated database, tenants, keys and adapters. Raises CannotServe."""
    given = {module.name: module.path for module in options.lora_modules}
    try:
        write_base_spec(settings.model_dir, settings.base_spec_file)
        if options.demo:
            return asyncio.run(ensure_demo(settings, given | demo_adapters()))
        return asyncio.run(ensure_tenants(settings, {DEFAULT_TENANT: given}))
    except (BaseUnreadable, ConfigError, DatabaseUnavailable) as error:
        raise CannotServe(str(error)) from error
    except GatewayError as error:  # an adapter that does not fit
        raise CannotServe(error.message) from error


def add_prepare(commands: Commands) -> None:
    parser = add_command(
        commands, "prepare", _prepare, help="migrate the database, note the base model", make=True
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the checkpoint")


async def _prepare(desk: Desk, arguments: argparse.Namespace) -> Row:
    try:
        await asyncio.to_thread(write_base_spec, arguments.model, desk.files.base_spec)
    except BaseUnreadable as error:
        raise ConfigError(str(error)) from error
    return {"database": "migrated", "base": str(desk.files.base_spec)}
