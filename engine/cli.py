"""The command line of ``python -m engine``: flags known from vLLM, turned into settings.

Imports no torch, so that ``--help`` and a wrong flag are answered at once.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import AdapterDtype, Device, Dtype, EngineConfig, HeadDtype, KvCacheDtype
from engine.errors import ConfigError
from engine.flags import Parser, amount
from engine.protocol import Role
from engine.speculation.settings import FLAG, SpeculationSettings

DEFAULTS = EngineConfig(model="")


@dataclass(frozen=True, slots=True)
class Serve:
    config: EngineConfig
    ready_fd: int | None  # gets one line when gateways can connect


@dataclass(frozen=True, slots=True)
class Tool:
    """A command beside serving; the arguments are its own."""

    name: str  # of TOOLS
    arguments: tuple[str, ...]


TOOLS = {
    "demo": "build the demo model",
    "bench": "measure an engine or a server",
    "plan": "what fits on a GPU, and how fast it can be",
    "quantize": "make a GPTQ or AWQ checkpoint, and say what it cost",
    "inspect": "what a checkpoint or an adapter is, and whether it will be served",
}


def parse(argv: Sequence[str]) -> Serve | Tool:
    """Raises ConfigError; exits on wrong flags, as argparse does."""
    parser = Parser(prog="python -m engine", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    served = commands.add_parser("serve", help="serve one model to gateways", allow_abbrev=False)
    _add_serve(served)
    for name, text in TOOLS.items():
        commands.add_parser(name, help=text, add_help=False)
    if argv and argv[0] in TOOLS:
        return Tool(argv[0], tuple(argv[1:]))
    arguments = parser.parse_args(argv)
    return Serve(_config(arguments), arguments.ready_fd)


def _speculation(text: str) -> SpeculationSettings:
    try:
        return SpeculationSettings.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(f"{FLAG}: ")) from error


def _add_serve(parser: argparse.ArgumentParser) -> None:
    d = DEFAULTS
    parser.add_argument("--model", required=True, metavar="DIR", help="the checkpoint")
    parser.add_argument("--listen", default=d.listen, metavar="unix:PATH|tcp:HOST:PORT|tls:…")
    parser.add_argument("--ssl-certfile", metavar="FILE", help="PEM, with its chain, of tls:")
    parser.add_argument("--ssl-keyfile", metavar="FILE", help="its key; both may be replaced")
    parser.add_argument(
        "--ssl-ca-certs", metavar="FILE", help="let in who shows a certificate of one of these"
    )
    parser.add_argument("--token-file", metavar="FILE", help="let in who knows one of its lines")
    parser.add_argument("--name", default=d.name, help="what gateways see this engine as")
    parser.add_argument(
        "--register", metavar="redis://…|@FILE",
        help="beat in this Redis, where gateways find the engine; @FILE holds the address",
    )  # fmt: skip
    parser.add_argument(
        "--advertise", metavar="tcp:HOST:PORT", help="what to register (default: --listen)"
    )
    parser.add_argument("--served-model-name", metavar="NAME", help="of the base, in metrics")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="serve /metrics by HTTP")
    parser.add_argument("--metrics-host", default=d.metrics_host, metavar="HOST")
    parser.add_argument("--otlp-traces-endpoint", metavar="URL", help="an OpenTelemetry collector")
    parser.add_argument(
        "--adapter-store", metavar="DIR|s3://…", help="without: the base model only"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="keeps the record of token counts")
    parser.add_argument("--ready-fd", type=int, metavar="FD", help="gets a line once serving")
    parser.add_argument("--device", type=Device, choices=list(Device), default=d.device)
    parser.add_argument("--dtype", type=Dtype, choices=list(Dtype), default=d.dtype)
    parser.add_argument(
        "--kv-cache-dtype", type=KvCacheDtype, choices=list(KvCacheDtype), default=d.kv_cache_dtype
    )
    parser.add_argument(
        "--head-dtype", type=HeadDtype, choices=list(HeadDtype), default=d.head_dtype,
        help="of the output layer; int8 is quicker, and how far off is said at start",
    )  # fmt: skip
    parser.add_argument(
        "--adapter-dtype", type=AdapterDtype, choices=list(AdapterDtype), default=d.adapter_dtype,
        help="of adapters in pages: 8 bits halve them; int8 is nearer to what was trained than fp8",
    )  # fmt: skip
    parser.add_argument(
        "--speculative-config", type=_speculation, metavar="JSON",
        help="verify guessed tokens, more than one a pass; keys as vLLM's: method (ngram), "
        "num_speculative_tokens, prompt_lookup_max, prompt_lookup_min",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads on CPU")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument(
        "--tensor-parallel-size", type=int, metavar="N", default=d.tensor_parallel_size,
        help="GPUs that compute the model together",
    )  # fmt: skip
    parser.add_argument(
        "--disable-custom-all-reduce", action="store_true",
        help="sums over GPUs are NCCL's alone, not made in each other's memory",
    )  # fmt: skip
    parser.add_argument("--max-model-len", type=int, metavar="TOKENS")
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences per pass")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, metavar="TOKENS", default=d.max_num_batched_tokens
    )
    parser.add_argument("--block-size", type=int, metavar="TOKENS", default=d.page_tokens)
    parser.add_argument(
        "--gpu-memory-utilization", type=float, metavar="SHARE", default=d.gpu_memory_utilization
    )
    parser.add_argument("--pool-bytes", type=int, metavar="BYTES", help="of the page pool")
    parser.add_argument(
        "--host-cache-bytes",
        type=int,
        metavar="BYTES",
        default=d.host_cache_bytes,
        help="of adapters kept in host memory",
    )
    parser.add_argument(
        "--swap-bytes",
        type=int,
        metavar="BYTES",
        default=d.swap_bytes,
        help="of host memory for sequences that had to yield their pages",
    )
    parser.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=d.enable_prefix_caching,
        help="compute equal beginnings of a tenant's prompts once (default: on)",
    )
    parser.add_argument(
        "--max-step-ms", type=amount, metavar="MS", help="of a pass in which sequences decode"
    )
    parser.add_argument(
        "--fairness-quantum", type=int, metavar="TOKENS", default=d.fairness_quantum
    )
    parser.add_argument(
        "--max-tenant-share", type=float, metavar="SHARE", default=d.max_tenant_share,
        help="of the pages, beyond which a tenant's next sequence waits",
    )  # fmt: skip
    parser.add_argument("--max-waiting", type=int, metavar="N", default=d.max_waiting)
    parser.add_argument(
        "--max-queue-wait", dest="max_queue_wait_s", type=amount, metavar="SECONDS",
        help="refuse at once whoever would wait longer for its first pass",
    )  # fmt: skip
    parser.add_argument("--max-adapter-loads", type=int, metavar="N", default=d.max_adapter_loads)
    parser.add_argument(
        "--role", type=Role, choices=list(Role), default=d.role,
        help="prefill: computes long prompts for engines that listen for their pages",
    )  # fmt: skip
    parser.add_argument(
        "--handoff-listen",
        metavar="tcp:HOST:PORT|tls:…",
        help="take pages of prompts: tcp: on a private network, tls: with the certificates above",
    )
    parser.add_argument(
        "--handoff-advertise", metavar="tcp:HOST:PORT|tls:…", help="as other engines reach it"
    )
    parser.add_argument(
        "--handoff-server-name", metavar="NAME",
        help="that certificates of engines with tls: are for (default: the address's host)",
    )  # fmt: skip
    parser.add_argument(
        "--handoff-bytes", type=int, metavar="BYTES", default=d.handoff_bytes,
        help="of host memory for pages on their way",
    )  # fmt: skip
    parser.add_argument(
        "--handoff-direct", action=argparse.BooleanOptionalAction, default=d.handoff_direct,
        help="between GPUs of one host copy pages from memory to memory (default: on)",
    )  # fmt: skip
    for name in ("grant_timeout", "drain_timeout", "handoff_timeout"):
        flag, default = f"--{name.replace('_', '-')}", getattr(d, f"{name}_s")
        parser.add_argument(flag, dest=f"{name}_s", type=float, metavar="SECONDS", default=default)


SAME_NAME = (
    "model", "listen", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "token_file",
    "name", "served_model_name", "metrics_port", "metrics_host",
    "otlp_traces_endpoint", "advertise",
    "adapter_store", "data_dir", "device", "dtype", "kv_cache_dtype", "head_dtype",
    "adapter_dtype", "threads",
    "deterministic", "enforce_eager", "tensor_parallel_size",
    "disable_custom_all_reduce", "max_model_len",
    "max_num_batched_tokens",
    "gpu_memory_utilization", "pool_bytes", "host_cache_bytes", "swap_bytes", "max_waiting",
    "max_adapter_loads", "enable_prefix_caching", "fairness_quantum", "max_tenant_share",
    "max_queue_wait_s", "grant_timeout_s", "drain_timeout_s", "role", "handoff_listen",
    "handoff_advertise", "handoff_server_name", "handoff_bytes", "handoff_direct",
    "handoff_timeout_s",
)  # fmt: skip


def _config(arguments: argparse.Namespace) -> EngineConfig:
    sequences = arguments.max_num_seqs
    if sequences is None:  # a small token budget alone is no contradiction
        sequences = max(1, min(DEFAULTS.max_num_seqs, arguments.max_num_batched_tokens))
    return EngineConfig(
        max_num_seqs=sequences,
        page_tokens=arguments.block_size,
        register=_told(arguments.register),
        speculation=arguments.speculative_config,
        max_step_s=arguments.max_step_ms and arguments.max_step_ms / 1000,
        **{name: getattr(arguments, name) for name in SAME_NAME},
    )


def _told(given: str | None) -> str | None:
    """An address may hold a password, which a list of processes should not show."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--register {given}: cannot be read ({error})") from error
