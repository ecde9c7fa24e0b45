"""The flags of ``loratorio serve``: those people know from vLLM, and a few of our own.

A flag that this design has no need for is accepted, so that a known command line runs unchanged,
and answered with one sentence that says why. A flag that would change the result and is not
there yet is refused.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.config import (
    LEAST_RETENTION_DAYS,
    MOST_WORKERS,
    TOOL_CALL_PARSERS,
    ConfigError,
    require_web_address,
)

DEFAULT_DATA_DIR = Path(".data")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

# flag -> (whether a value follows it, why it is not needed)
UNNEEDED: dict[str, tuple[bool, str]] = {
    "--enable-lora": (False, "adapters are always on"),
    "--max-loras": (True, "there are no slots: adapters share the page pool"),
    "--max-cpu-loras": (True, "the host cache is bounded by bytes, not by adapters"),
    "--max-lora-rank": (True, "every adapter is served at its own rank"),
    "--lora-dtype": (True, "adapters take the compute dtype"),
    "--fully-sharded-loras": (False, "there is one device"),
    "--enable-chunked-prefill": (False, "prefill is always chunked"),
    "--no-enable-chunked-prefill": (
        False,
        "prefill is always chunked, so no prompt stalls the rest",
    ),
    "--disable-log-requests": (False, "prompts are never logged"),
    "--no-enable-log-requests": (False, "prompts are never logged"),
    "--trust-remote-code": (False, "code in a checkpoint is never run"),
    "--swap-space": (True, "nothing is swapped"),
    "--enable-auto-tool-choice": (False, "tools are always on"),
    "--guided-decoding-backend": (True, "there is one"),
    "--enable-ssl-refresh": (False, "replaced certificates are always taken anew"),
}
DTYPES = {"half": "float16", "float": "float32"}
QUANTIZATIONS = {"awq_marlin": "awq", "gptq_marlin": "gptq"}


class FlagsInvalid(ValueError):
    """Flags that contradict each other or ask for what is not there. One sentence."""


@dataclass(frozen=True, slots=True)
class LoraModule:
    """``--lora-modules name=path``: an adapter on disk and the name clients call it by."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """One parsed command line, checked against itself but not yet against the machine."""

    model: Path | None  # None: the demo model
    demo: bool
    host: str
    port: int  # 0: any free one
    ssl_certfile: Path | None
    ssl_keyfile: Path | None
    metrics_port: int
    workers: int
    open: bool
    deterministic: bool
    served_model_name: str | None
    device: str
    dtype: str
    quantization: str  # "auto": whatever the tensors say
    data_dir: Path
    database_url: str | None
    redis_url: str | None
    adapter_canary: bool
    adapter_store: str | None
    ready_file: Path | None
    allowed_origins: tuple[str, ...]
    usage_retention_days: int | None
    alert_webhook: str | None
    operator_organisation: str | None
    sinks: Path | None
    oidc: Path | None
    otlp_traces_endpoint: str | None
    forwarded_hops: int
    priority_tier: bool
    public_system_prompts: tuple[str, ...]
    tool_call_parser: str
    lora_modules: tuple[LoraModule, ...]
    engine_flags: tuple[str, ...]  # handed on as they are
    unneeded: tuple[str, ...] = field(default=())  # sentences to print


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
        "--quantization",
        "-q",
        default="auto",
        metavar="METHOD",
        choices=["auto", "none", "awq", "gptq", "compressed-tensors", "fp8", *QUANTIZATIONS],
        help="refuse a checkpoint that is stored otherwise (default: auto)",
    )
    _add_address(parser.add_argument_group("where"))
    _add_state(parser.add_argument_group("state"))
    _add_engine(parser.add_argument_group("engine (handed to it as they are)"))
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
    group.add_argument(
        "--oidc", type=Path, metavar="FILE",
        help="JSON: an OpenID provider that signs people in to the dashboard (default: none)",
    )  # fmt: skip
    group.add_argument(
        "--otlp-traces-endpoint", metavar="URL",
        help="an OpenTelemetry collector that traces are sent to, by HTTP (default: nowhere)",
    )  # fmt: skip
    group.add_argument(
        "--forwarded-hops",
        type=int,
        choices=range(17),
        default=0,
        metavar="N",
        help="proxies of yours in front of the server, whose X-Forwarded-For it believes",
    )
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
    group.add_argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="written when the server answers: addresses, keys and models as JSON",
    )


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


def _add_engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    group.add_argument(
        "--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32", *DTYPES]
    )
    group.add_argument(
        "--max-model-len",
        type=_positive,
        metavar="TOKENS",
        help="prompt plus completion (default: what the model and memory allow)",
    )
    group.add_argument(
        "--kv-cache-dtype", choices=["auto", "fp8", "fp8_e4m3"],
        help="of keys and values in pages: fp8 halves them (default: the compute dtype)",
    )  # fmt: skip
    group.add_argument(
        "--head-dtype", choices=["auto", "int8"],
        help="of the output layer; int8 is quicker, and how far off is said at start",
    )  # fmt: skip
    group.add_argument(
        "--speculative-config", metavar="JSON",
        help="verify guessed tokens, more than one a step, with vLLM's keys: "
        '{"method": "ngram", "num_speculative_tokens": 4}',
    )  # fmt: skip
    group.add_argument("--max-num-seqs", type=_positive, metavar="N", help="sequences per step")
    group.add_argument(
        "--max-num-batched-tokens", type=_positive, metavar="TOKENS", help="tokens per forward pass"
    )
    group.add_argument("--block-size", type=_positive, metavar="TOKENS", help="tokens per page")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        help="share of the device's memory to use",
    )
    group.add_argument(
        "--host-cache-bytes",
        type=_positive,
        metavar="BYTES",
        help="of adapters kept in host memory (default: 1 GiB)",
    )
    group.add_argument(
        "--swap-bytes",
        type=int,
        metavar="BYTES",
        help="of host memory for sequences that had to yield their pages (default: 1 GiB)",
    )
    group.add_argument("--enforce-eager", action="store_true", help="no captured graphs")
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute equal beginnings of a project's prompts once (default: on)",
    )
    group.add_argument(
        "--max-step-ms",
        type=_positive,
        metavar="MS",
        help="time of a step while sequences decode (default: 25 on CUDA): sizes prompts' chunks",
    )
    group.add_argument(
        "--max-tenant-share",
        type=float,
        metavar="SHARE",
        help="of the pages, beyond which a project's next sequence waits (default: 1)",
    )
    group.add_argument(
        "--max-queue-wait",
        type=_positive,
        metavar="SECONDS",
        help="refuse at once whoever would wait longer (default: until its deadline)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="a request's tokens never depend on who shares the batch",
    )
    group.add_argument(
        "--tensor-parallel-size", "-tp", type=int, default=1, metavar="N",
        help="GPUs that compute the model together (default: 1)",
    )  # fmt: skip
    group.add_argument(
        "--disable-custom-all-reduce", action="store_true",
        help="leave sums over GPUs to NCCL alone",
    )  # fmt: skip


PASSED_ON = ("kv_cache_dtype", "head_dtype", "speculative_config", "max_model_len",
             "max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization",
             "max_step_ms", "max_tenant_share", "max_queue_wait", "host_cache_bytes",
             "swap_bytes")  # fmt: skip


def read_serve(arguments: argparse.Namespace) -> ServeOptions:
    """Turn parsed arguments into options. Raises FlagsInvalid."""
    model = _model(arguments)
    _refuse_contradictions(arguments)
    return ServeOptions(
        model=model,
        demo=arguments.demo,
        host=arguments.host,
        port=arguments.port,
        ssl_certfile=arguments.ssl_certfile,
        ssl_keyfile=arguments.ssl_keyfile,
        metrics_port=arguments.metrics_port,
        workers=arguments.workers,
        open=arguments.open,
        deterministic=arguments.deterministic,
        served_model_name=arguments.served_model_name,
        device=arguments.device,
        dtype=DTYPES.get(arguments.dtype, arguments.dtype),
        quantization=QUANTIZATIONS.get(arguments.quantization, arguments.quantization),
        data_dir=arguments.data_dir.expanduser().resolve(),
        database_url=arguments.database_url,
        redis_url=arguments.redis_url,
        adapter_canary=arguments.adapter_canary,
        adapter_store=arguments.adapter_store,
        ready_file=arguments.ready_file,
        allowed_origins=_origins(arguments.allowed_origins),
        usage_retention_days=arguments.usage_retention_days,
        alert_webhook=_web_address(arguments.alert_webhook),
        operator_organisation=arguments.operator_organisation,
        sinks=arguments.sinks,
        oidc=arguments.oidc,
        otlp_traces_endpoint=arguments.otlp_traces_endpoint,
        forwarded_hops=arguments.forwarded_hops,
        priority_tier=arguments.priority_tier,
        public_system_prompts=tuple(map(_text_of, arguments.public_system_prompt)),
        tool_call_parser=arguments.tool_call_parser,
        lora_modules=parse_lora_modules(arguments.lora_modules),
        engine_flags=_engine_flags(arguments),
        unneeded=_unneeded(arguments),
    )


def parse_lora_modules(texts: Sequence[str]) -> tuple[LoraModule, ...]:
    """Each ``name=path``, or vLLM's JSON ``{"name": …, "path": …}``. Raises FlagsInvalid."""
    modules = tuple(_lora_module(text) for text in texts)
    names = [module.name for module in modules]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise FlagsInvalid(f"--lora-modules names {sorted(repeated)[0]!r} twice")
    return modules


def _lora_module(text: str) -> LoraModule:
    if text.startswith("{"):
        try:
            fields = json.loads(text)
            return LoraModule(str(fields["name"]), Path(fields["path"]).expanduser().resolve())
        except (ValueError, KeyError, TypeError) as error:
            raise FlagsInvalid(
                f'--lora-modules {text!r} is not JSON with "name" and "path"'
            ) from error
    name, _, path = text.partition("=")
    if not name or not path:
        raise FlagsInvalid(f"--lora-modules {text!r} is not NAME=DIR")
    return LoraModule(name, Path(path).expanduser().resolve())


def _retention(text: str) -> int:
    if not text.isdigit() or int(text) < LEAST_RETENTION_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r}: at least {LEAST_RETENTION_DAYS} days")
    return int(text)


def _web_address(text: str | None) -> str | None:
    if text is not None:
        try:
            require_web_address("--alert-webhook", text)
        except ConfigError as error:
            raise FlagsInvalid(str(error)) from error
    return text


def _origins(texts: Sequence[str]) -> tuple[str, ...]:
    """Each an origin, or vLLM's JSON array of them. Raises FlagsInvalid."""
    origins: list[str] = []
    for text in texts:
        try:
            found = json.loads(text) if text.startswith("[") else [text]
        except ValueError as error:
            raise FlagsInvalid(f"--allowed-origins {text!r} is not a JSON array") from error
        origins += map(str, found)
    return tuple(dict.fromkeys(origins))


def _model(arguments: argparse.Namespace) -> Path | None:
    named = [m for m in (arguments.model, arguments.model_tag) if m is not None]
    if arguments.demo and named:
        raise FlagsInvalid("--demo brings its own model: leave out --model, or leave out --demo")
    if len(named) > 1:
        raise FlagsInvalid("the model is given twice: as MODEL and as --model")
    if not named and not arguments.demo:
        raise FlagsInvalid("nothing to serve: give --model DIR, or --demo for the demo model")
    return Path(named[0]).expanduser().resolve() if named else None


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    if arguments.tensor_parallel_size < 1:
        raise FlagsInvalid(
            f"--tensor-parallel-size {arguments.tensor_parallel_size} must be at least 1"
        )
    if arguments.open and arguments.host not in LOOPBACK:
        raise FlagsInvalid(
            f"--open lets anyone in, so it needs a loopback --host, not {arguments.host}"
        )
    if not 1 <= arguments.workers <= MOST_WORKERS:
        raise FlagsInvalid(f"--workers {arguments.workers} is not between 1 and {MOST_WORKERS}")
    if arguments.workers > 1 and arguments.redis_url is None:
        raise FlagsInvalid(
            f"--workers {arguments.workers} needs --redis-url: without it each worker would count"
            " limits by itself"
        )
    if arguments.port and arguments.port == arguments.metrics_port:
        raise FlagsInvalid(f"--port and --metrics-port are both {arguments.port}")
    share = arguments.gpu_memory_utilization
    if share is not None and not 0.0 < share < 1.0:
        raise FlagsInvalid(f"--gpu-memory-utilization {share} is not between 0 and 1")
    share = arguments.max_tenant_share
    if share is not None and not 0.0 < share <= 1.0:
        raise FlagsInvalid(f"--max-tenant-share {share} is not above 0 and at most 1")


def _engine_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    flags: list[str] = []
    for name in PASSED_ON:
        if (value := getattr(arguments, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    flags += [] if arguments.enable_prefix_caching else ["--no-enable-prefix-caching"]
    size = arguments.tensor_parallel_size
    flags += ["--tensor-parallel-size", str(size)] if size > 1 else []
    if arguments.disable_custom_all_reduce:
        flags.append("--disable-custom-all-reduce")
    flags += ["--enforce-eager"] if arguments.enforce_eager else []
    flags += ["--deterministic"] if arguments.deterministic else []
    return tuple(flags)


def _unneeded(arguments: argparse.Namespace) -> tuple[str, ...]:
    given = vars(arguments)
    return tuple(
        f"{flag} is not needed: {why}"
        for flag, (_, why) in UNNEEDED.items()
        if given[flag[2:].replace("-", "_")]
    )


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FlagsInvalid(f"--public-system-prompt {file}: {error}") from error


def _port(text: str) -> int:
    number = int(text) if text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return number


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
