"""The flags of ``loratorio serve``: those people know from vLLM, and a few of our own.

A flag that this design has no need for is accepted, so that a known command line runs unchanged,
and answered with one sentence that says why. A flag that would change the result and is not
there yet is refused.
"""

import argparse
from pathlib import Path

from gateway.cli.engine_flags import add_engine
from gateway.config import GENERATION_CONFIGS, LEAST_RETENTION_DAYS, TOOL_CALL_PARSERS

DEFAULT_DATA_DIR = Path(".data")

# flag -> (whether a value follows it, why it is not needed)
UNNEEDED: dict[str, tuple[bool, str]] = {
    "--enable-lora": (False, "adapters are always on"),
    "--max-loras": (True, "there are no slots: adapters share the page pool"),
    "--max-cpu-loras": (True, "the host cache is bounded by bytes, not by adapters"),
    "--max-lora-rank": (True, "every adapter is served at its own rank"),
    "--lora-dtype": (True, "adapters take the compute dtype, or --adapter-dtype's 8 bits"),
    "--fully-sharded-loras": (False, "adapters are split over devices as what they adapt is"),
    "--enable-chunked-prefill": (False, "prefill is always chunked"),
    "--no-enable-chunked-prefill": (
        False,
        "prefill is always chunked, so no prompt stalls the rest",
    ),
    "--disable-log-requests": (False, "prompts are never logged"),
    "--no-enable-log-requests": (False, "prompts are never logged"),
    "--trust-remote-code": (False, "code in a checkpoint is never run"),
    "--swap-space": (True, "--swap-bytes says how much, 1 GiB unless told"),
    "--enable-auto-tool-choice": (False, "tools are always on"),
    "--guided-decoding-backend": (True, "there is one"),
    "--enable-ssl-refresh": (False, "replaced certificates are always taken anew"),
}
STORED = ("awq", "gptq", "compressed-tensors", "fp8", "auto-round")
QUANTIZATIONS = {"awq_marlin": "awq", "gptq_marlin": "gptq", "inc": "auto-round"}


def add_serve(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("what to serve")
    model.add_argument("model_tag", nargs="?", metavar="MODEL", help="same as --model")
    model.add_argument("--model", type=Path, metavar="DIR", help="a checkpoint on this machine")
    model.add_argument(
        "--demo",
        action="store_true",
        help="serve the demo model and its adapters (made on the first start)",
    )
    model.add_argument("--served-model-name", metavar="NAME", help="what clients call the base")
    model.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=DIR",
        help="PEFT adapters to serve for the default project",
    )
    model.add_argument(
        "--tool-call-parser",
        default="auto",
        choices=TOOL_CALL_PARSERS,
        help="how the model writes calls of tools (default: as its chat template says)",
    )
    model.add_argument(
        "--generation-config",
        default="auto",
        choices=GENERATION_CONFIGS,
        help="where a client says nothing of sampling: as the checkpoint recommends (auto, the"
        " default), or at temperature 1 (vllm)",
    )
    model.add_argument(
        "--quantization",
        "-q",
        default="auto",
        metavar="METHOD",
        choices=["auto", "none", *STORED, *QUANTIZATIONS],
        help="refuse a checkpoint that is stored otherwise (default: auto)",
    )
    _add_address(parser.add_argument_group("where"))
    _add_callers(parser.add_argument_group("who may call, and how they are served"))
    _add_money(parser.add_argument_group("usage and money"))
    _add_state(parser.add_argument_group("state"))
    add_engine(parser.add_argument_group("engine (handed to it as they are)"))
    ignored = parser.add_argument_group("accepted and not needed")
    for flag, (takes_value, why) in UNNEEDED.items():
        if takes_value:
            ignored.add_argument(flag, metavar="…", help=why)
        else:
            ignored.add_argument(flag, action="store_true", help=why)


def _add_address(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    group.add_argument("--port", type=_port, default=8000, help="default: %(default)s")
    group.add_argument(
        "--ssl-certfile", type=Path, metavar="FILE",
        help="serve https with this certificate and its chain, PEM (default: plain http)",
    )  # fmt: skip
    group.add_argument(
        "--ssl-keyfile", type=Path, metavar="FILE",
        help="its key; both may be replaced while serving",
    )  # fmt: skip
    group.add_argument(
        "--metrics-port",
        type=_port,
        default=8001,
        metavar="PORT",
        help="Prometheus metrics, on the same host (default: %(default)s)",
    )
    group.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="gateways that share the port, each on a core of its own; needs --redis-url; their"
        " metrics are on the ports from --metrics-port on (default: %(default)s)",
    )
    group.add_argument(
        "--otlp-traces-endpoint", metavar="URL",
        help="an OpenTelemetry collector that traces are sent to, by HTTP (default: nowhere)",
    )  # fmt: skip
    group.add_argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="written when the server answers: addresses, keys and models as JSON",
    )


def _add_callers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--open",
        action="store_true",
        help="any API key, or none, is the first demo project; loopback only",
    )
    group.add_argument(
        "--allowed-origins",
        nargs="+",
        action="extend",
        default=[],
        metavar="ORIGIN",
        help="origins of web pages that may call the API, or * for all (default: none)",
    )
    group.add_argument(
        "--forwarded-hops",
        type=int,
        choices=range(17),
        default=0,
        metavar="N",
        help="proxies of yours in front of the server, whose X-Forwarded-For it believes",
    )
    group.add_argument(
        "--oidc", type=Path, metavar="FILE",
        help="JSON: an OpenID provider that signs people in to the dashboard (default: none)",
    )  # fmt: skip
    group.add_argument(
        "--priority-tier",
        action="store_true",
        help='let requests with service_tier "priority" go before others',
    )
    group.add_argument(
        "--public-system-prompt",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a system message that is no secret: the base's work on it is shared by all projects",
    )


def _add_money(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--usage-retention-days",
        type=_retention,
        metavar="DAYS",
        help="how long single usage events of closed months are kept; sums stay (default: ever)",
    )
    group.add_argument(
        "--alert-webhook",
        metavar="URL",
        help="where spend alerts are sent, signed with DATA_DIR/webhook-secret (default: nowhere)",
    )
    group.add_argument(
        "--operator-organisation",
        metavar="ORG",
        help="whose owners, admins and billing keys may grant credit over HTTP (default: nobody's)",
    )
    group.add_argument(
        "--sinks", type=Path, metavar="FILE",
        help="JSON: billing systems that usage is sent to, Stripe or CloudEvents (default: none)",
    )  # fmt: skip


def _add_state(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data-dir",
        type=Path,
        default=DEFAULT_DATA_DIR,
        metavar="DIR",
        help="database, adapters, usage log, demo model (default: %(default)s)",
    )
    group.add_argument(
        "--database-url",
        metavar="URL",
        help="postgresql://… (default: SQLite in the data directory)",
    )
    group.add_argument(
        "--redis-url",
        metavar="URL",
        help="share rate limits between gateways (default: in process)",
    )
    group.add_argument(
        "--adapter-store",
        metavar="URL",
        help="s3://bucket/prefix, shared by a fleet (default: a directory in the data directory)",
    )
    group.add_argument(
        "--adapter-canary",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="try every uploaded adapter on the engine before it is published (default: on)",
    )


def _retention(text: str) -> int:
    if not text.isdigit() or int(text) < LEAST_RETENTION_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r}: at least {LEAST_RETENTION_DAYS} days")
    return int(text)


def _port(text: str) -> int:
    number = int(text) if text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return number
