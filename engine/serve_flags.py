"""The flags of ``python -m engine serve``: those people know from vLLM, and a few of our own."""

import argparse

from engine.config import AdapterDtype, Device, Dtype, EngineConfig, HeadDtype, KvCacheDtype
from engine.errors import ConfigError
from engine.flags import amount
from engine.protocol import Role
from engine.speculation.settings import FLAG, SpeculationSettings

DEFAULTS = EngineConfig(model="")
Group = argparse._ArgumentGroup  # typeshed names it no otherwise


def add_serve(parser: argparse.ArgumentParser) -> None:
    _add_model(parser.add_argument_group("what to serve"))
    _add_doors(parser.add_argument_group("who may connect"))
    _add_finding(parser.add_argument_group("how it is found and watched"))
    _add_state(parser.add_argument_group("what is kept"))
    _add_memory(parser.add_argument_group("memory"))
    _add_passes(parser.add_argument_group("passes"))
    _add_turns(parser.add_argument_group("whose turn it is"))
    _add_handoffs(parser.add_argument_group("prompts that one engine computes for another"))


def _add_model(group: Group) -> None:
    d = DEFAULTS
    group.add_argument("--model", required=True, metavar="DIR", help="the checkpoint")
    group.add_argument(
        "--device", type=Device, choices=list(Device), default=d.device,
        help="default: a GPU if there is one",
    )  # fmt: skip
    group.add_argument(
        "--dtype", type=Dtype, choices=list(Dtype), default=d.dtype,
        help="to compute in (default: what suits checkpoint and device)",
    )  # fmt: skip
    group.add_argument(
        "--kv-cache-dtype", type=KvCacheDtype, choices=list(KvCacheDtype), default=d.kv_cache_dtype,
        help="of keys and values in pages: fp8 halves them (default: the compute dtype)",
    )  # fmt: skip
    group.add_argument(
        "--head-dtype", type=HeadDtype, choices=list(HeadDtype), default=d.head_dtype,
        help="of the output layer; int8 is quicker, and how far off is said at start",
    )  # fmt: skip
    group.add_argument(
        "--adapter-dtype", type=AdapterDtype, choices=list(AdapterDtype), default=d.adapter_dtype,
        help="of adapters in pages: 8 bits halve them; int8 is nearer to what was trained than fp8",
    )  # fmt: skip
    group.add_argument(
        "--max-model-len", type=int, metavar="TOKENS",
        help="prompt plus completion (default: what the model and memory allow)",
    )  # fmt: skip
    group.add_argument(
        "--tensor-parallel-size", type=int, metavar="N", default=d.tensor_parallel_size,
        help="GPUs that compute the model together",
    )  # fmt: skip
    group.add_argument(
        "--disable-custom-all-reduce", action="store_true",
        help="sums over GPUs are NCCL's alone, not made in each other's memory",
    )  # fmt: skip


def _add_doors(group: Group) -> None:
    group.add_argument("--listen", default=DEFAULTS.listen, metavar="unix:PATH|tcp:HOST:PORT|tls:…")
    group.add_argument("--ssl-certfile", metavar="FILE", help="PEM, with its chain, of tls:")
    group.add_argument("--ssl-keyfile", metavar="FILE", help="its key; both may be replaced")
    group.add_argument(
        "--ssl-ca-certs", metavar="FILE", help="let in who shows a certificate of one of these"
    )
    group.add_argument("--token-file", metavar="FILE", help="let in who knows one of its lines")


def _add_finding(group: Group) -> None:
    d = DEFAULTS
    group.add_argument("--name", default=d.name, help="what gateways see this engine as")
    group.add_argument(
        "--register", metavar="redis://…|@FILE",
        help="beat in this Redis, where gateways find the engine; @FILE holds the address",
    )  # fmt: skip
    group.add_argument(
        "--advertise", metavar="tcp:HOST:PORT", help="what to register (default: --listen)"
    )
    group.add_argument("--served-model-name", metavar="NAME", help="of the base, in metrics")
    group.add_argument("--metrics-port", type=int, metavar="PORT", help="serve /metrics by HTTP")
    group.add_argument("--metrics-host", default=d.metrics_host, metavar="HOST")
    group.add_argument("--otlp-traces-endpoint", metavar="URL", help="an OpenTelemetry collector")
    group.add_argument("--ready-fd", type=int, metavar="FD", help="gets a line once serving")


def _add_state(group: Group) -> None:
    group.add_argument("--adapter-store", metavar="DIR|s3://…", help="without: the base model only")
    group.add_argument("--data-dir", metavar="DIR", help="keeps the record of token counts")


def _add_memory(group: Group) -> None:
    d = DEFAULTS
    group.add_argument(
        "--block-size", type=int, metavar="TOKENS", default=d.page_tokens,
        help="of a page (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--gpu-memory-utilization", type=float, metavar="SHARE", default=d.gpu_memory_utilization,
        help="of the device's memory (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--pool-bytes", type=int, metavar="BYTES", help="of the page pool")
    group.add_argument(
        "--host-cache-bytes", type=int, metavar="BYTES", default=d.host_cache_bytes,
        help="of adapters kept in host memory",
    )  # fmt: skip
    group.add_argument(
        "--swap-bytes", type=int, metavar="BYTES", default=d.swap_bytes,
        help="of host memory for sequences that had to yield their pages",
    )  # fmt: skip
    group.add_argument(
        "--enable-prefix-caching", action=argparse.BooleanOptionalAction,
        default=d.enable_prefix_caching,
        help="compute equal beginnings of a tenant's prompts once (default: on)",
    )  # fmt: skip
    group.add_argument(
        "--max-adapter-loads", type=int, metavar="N", default=d.max_adapter_loads,
        help="adapters on their way from the store at once (default: %(default)s)",
    )  # fmt: skip


def _add_passes(group: Group) -> None:
    d = DEFAULTS
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences per pass")
    group.add_argument(
        "--max-num-batched-tokens", type=int, metavar="TOKENS", default=d.max_num_batched_tokens,
        help="per pass (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-step-ms", type=amount, metavar="MS", help="of a pass in which sequences decode"
    )
    group.add_argument(
        "--speculative-config", type=_speculation, metavar="JSON",
        help="verify guessed tokens, more than one a pass; keys as vLLM's: method (ngram), "
        "num_speculative_tokens, prompt_lookup_max, prompt_lookup_min",
    )  # fmt: skip
    group.add_argument(
        "--deterministic", action="store_true",
        help="a request's tokens never depend on who shares the batch",
    )  # fmt: skip
    group.add_argument("--enforce-eager", action="store_true", help="no captured graphs")
    group.add_argument("--threads", type=int, metavar="N", help="compute threads on CPU")


def _add_turns(group: Group) -> None:
    d = DEFAULTS
    group.add_argument(
        "--fairness-quantum", type=int, metavar="TOKENS", default=d.fairness_quantum,
        help="by which tenants' service may differ for a warm adapter (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-tenant-share", type=float, metavar="SHARE", default=d.max_tenant_share,
        help="of the pages, beyond which a tenant's next sequence waits",
    )  # fmt: skip
    group.add_argument(
        "--max-waiting", type=int, metavar="N", default=d.max_waiting,
        help="sequences beyond which the queue is full (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--max-queue-wait", dest="max_queue_wait_s", type=amount, metavar="SECONDS",
        help="refuse at once whoever would wait longer for its first pass",
    )  # fmt: skip
    _add_seconds(group, "grant_timeout", "that a request waits for leave to generate more")
    _add_seconds(group, "drain_timeout", "that what is open may take once asked to end")


def _add_handoffs(group: Group) -> None:
    d = DEFAULTS
    group.add_argument(
        "--role", type=Role, choices=list(Role), default=d.role,
        help="prefill: computes long prompts for engines that listen for their pages",
    )  # fmt: skip
    group.add_argument(
        "--handoff-listen", metavar="tcp:HOST:PORT|tls:…",
        help="take pages of prompts: tcp: on a private network, tls: with the certificates above",
    )  # fmt: skip
    group.add_argument(
        "--handoff-advertise", metavar="tcp:HOST:PORT|tls:…", help="as other engines reach it"
    )
    group.add_argument(
        "--handoff-server-name", metavar="NAME",
        help="that certificates of engines with tls: are for (default: the address's host)",
    )  # fmt: skip
    group.add_argument(
        "--handoff-bytes", type=int, metavar="BYTES", default=d.handoff_bytes,
        help="of host memory for pages on their way",
    )  # fmt: skip
    group.add_argument(
        "--handoff-direct", action=argparse.BooleanOptionalAction, default=d.handoff_direct,
        help="between GPUs of one host copy pages from memory to memory (default: on)",
    )  # fmt: skip
    _add_seconds(group, "handoff_timeout", "after which the taker computes what has not come")


def _add_seconds(group: Group, name: str, text: str) -> None:
    group.add_argument(
        f"--{name.replace('_', '-')}", dest=f"{name}_s", type=float, metavar="SECONDS",
        default=getattr(DEFAULTS, f"{name}_s"), help=f"{text} (default: %(default)g)",
    )  # fmt: skip


def _speculation(text: str) -> SpeculationSettings:
    try:
        return SpeculationSettings.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(f"{FLAG}: ")) from error
