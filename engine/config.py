"""Everything an engine needs to know before it starts, checked once.

Read at start-up, frozen, passed down by argument. Nothing below ``__main__`` reads an
environment variable, and no other module computes these numbers again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from engine.address import AddressInvalid, FileAddress, read_address, read_net_address
from engine.errors import ConfigError
from engine.protocol import Role
from engine.speculation.settings import SpeculationSettings

SPECULATING = 64  # sequences that may have all their drafts in one pass: beyond, it hardly pays

ANY_HOST = ("0.0.0.0", "::")  # noqa: S104  listening there says nothing about the way here
A = TypeVar("A")


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    AUTO = "auto"  # what is fastest on the device and the checkpoint allows
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class KvCacheDtype(StrEnum):
    AUTO = "auto"  # as the model computes
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"  # the same

    @property
    def narrow(self) -> bool:
        """8 bits a number, and a magnitude for each head of a token."""
        return self != KvCacheDtype.AUTO


class HeadDtype(StrEnum):
    AUTO = "auto"  # as stored
    INT8 = "int8"


class AdapterDtype(StrEnum):
    """Of the A and B of linear layers; what else an adapter has is kept as the model computes."""

    AUTO = "auto"  # as the model computes
    INT8 = "int8"
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"  # the same

    @property
    def codes(self) -> str | None:
        """Of 8 bits, by the name that packing and kernels know; None: there are none."""
        if self == AdapterDtype.AUTO:
            return None
        return "int8" if self == AdapterDtype.INT8 else "e4m3"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    model: str  # directory of the checkpoint
    listen: str = "unix:engine.sock"  # unix:PATH, tcp:HOST:PORT or tls:HOST:PORT
    ssl_certfile: str | None = None  # of tls:, PEM, with its chain
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None  # gateways must show a certificate of one of these
    token_file: str | None = None  # gateways must show a token of one of its lines
    name: str = "engine"
    served_model_name: str | None = None  # of the base, in metrics; None: the checkpoint's folder
    metrics_port: int | None = None  # of an HTTP page of its own; None: gateways ask for it
    metrics_host: str = "127.0.0.1"
    register: str | None = field(default=None, repr=False)  # Redis in which gateways find it
    advertise: str | None = None  # address that gateways are told; None: ``listen``
    otlp_traces_endpoint: str | None = None  # of an OpenTelemetry collector; None: no traces
    adapter_store: str | None = None  # directory or s3://bucket/prefix; None: base model only
    data_dir: str | None = None  # where token counts are recorded; None: memory only
    device: Device = Device.AUTO
    dtype: Dtype = Dtype.AUTO
    kv_cache_dtype: KvCacheDtype = KvCacheDtype.AUTO
    head_dtype: HeadDtype = HeadDtype.AUTO
    adapter_dtype: AdapterDtype = AdapterDtype.AUTO
    threads: int | None = None  # compute threads on CPU; None: the library's choice
    deterministic: bool = False  # a row's tokens are bit-equal whoever shares the batch
    enforce_eager: bool = False
    tensor_parallel_size: int = 1  # members that compute the model together, a device each
    disable_custom_all_reduce: bool = False  # their sums are NCCL's alone

    speculation: SpeculationSettings | None = None  # None: a token a pass

    max_model_len: int | None = None  # tokens, prompt plus completion; None: the model's own
    max_num_seqs: int = 256  # sequences per forward pass
    max_num_batched_tokens: int = 2048  # tokens per forward pass
    page_tokens: int = 64  # tokens per page
    gpu_memory_utilization: float = 0.90  # of total device memory
    pool_bytes: int | None = None  # of the page pool; None: measured on CUDA, modest on CPU
    host_cache_bytes: int = 1 << 30  # of adapters kept in host memory
    swap_bytes: int = 1 << 30  # of host memory for KV of sequences that had to yield

    enable_prefix_caching: bool = True  # KV of equal beginnings is computed once per tenant
    fairness_quantum: int = 4096  # cost by which tenants' service may differ for a warm adapter
    max_tenant_share: float = 1.0  # of the pages, beyond which a tenant's next sequence waits
    max_step_s: float | None = None  # of a pass with decodes; None: 25 ms on CUDA, else no limit
    max_waiting: int = 1024  # sequences that may wait before Refused queue_full
    max_queue_wait_s: float | None = None  # a request that would wait longer is refused at once
    max_adapter_loads: int = 16  # cold adapters brought to host memory at a time
    grant_ahead: int = 64  # tokens before the end of a grant at which more is asked for
    grant_step: int = 256  # how many more are asked for
    grant_timeout_s: float = 5.0  # a sequence without a grant ends after this long
    drain_timeout_s: float = 30.0  # what still runs then is ended with an error
    max_write_buffer: int = 8 << 20  # bytes a gateway may leave unread before it is dropped

    role: Role = Role.BOTH  # what gateways send it
    handoff_listen: str | None = None  # tcp: or tls:HOST:PORT where pages come; None: nowhere
    handoff_advertise: str | None = None  # the same as other engines reach it; None: as it listens
    handoff_server_name: str | None = None  # of takers' certificates; None: the address's host
    handoff_bytes: int = 256 << 20  # of host memory for pages on their way
    handoff_timeout_s: float = 10.0  # in which nothing happens, and a handoff is given up
    handoff_direct: bool = True  # on one host, read pages from the other GPU's memory

    def __post_init__(self) -> None:
        self._at_least("page_tokens", self.page_tokens, 1)
        self._check_team()
        self._at_least("max_num_seqs", self.max_num_seqs, 1)
        self._at_least("max_num_batched_tokens", self.max_num_batched_tokens, 2)
        self._at_least("max_waiting", self.max_waiting, 1)
        self._at_least("max_adapter_loads", self.max_adapter_loads, 1)
        self._at_least("grant_step", self.grant_step, 1)
        self._at_least("grant_ahead", self.grant_ahead, 0)
        self._at_least("host_cache_bytes", self.host_cache_bytes, 0)
        self._at_least("swap_bytes", self.swap_bytes, 0)
        self._at_least("max_write_buffer", self.max_write_buffer, 1)
        for name in ("threads", "pool_bytes"):
            if (value := getattr(self, name)) is not None:
                self._at_least(name, value, 1)
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise ConfigError(f"metrics_port={self.metrics_port} must be between 0 and 65535")
        self._check_way_here()
        self._check_door()
        if self.max_model_len is not None:
            self._at_least("max_model_len", self.max_model_len, 2)  # one prompt token, one more
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} must be at least "
                f"max_num_seqs={self.max_num_seqs}: each running sequence computes a token per pass"
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization={self.gpu_memory_utilization} must be above 0, at most 1"
            )
        self._at_least("fairness_quantum", self.fairness_quantum, 0)
        if not 0.0 < self.max_tenant_share <= 1.0:
            raise ConfigError(
                f"max_tenant_share={self.max_tenant_share} must be above 0, at most 1"
            )
        for name in ("max_step_s", "max_queue_wait_s"):
            if (most := getattr(self, name)) is not None and not most > 0:
                raise ConfigError(f"{name}={most} must be above 0")
        self._at_least("handoff_bytes", self.handoff_bytes, 1)
        self._check_handoffs()
        if not self.handoff_timeout_s > 0:
            raise ConfigError(f"handoff_timeout_s={self.handoff_timeout_s} must be above 0")
        for name in ("grant_timeout_s", "drain_timeout_s"):
            if (seconds := getattr(self, name)) < 0:
                raise ConfigError(f"{name}={seconds} must not be negative")

    def _check_team(self) -> None:
        size = self.tensor_parallel_size
        self._at_least("tensor_parallel_size", size, 1)
        if size == 1:
            return
        if self.deterministic and size > 2:
            raise ConfigError(
                f"tensor_parallel_size={size} with deterministic: a sum over more than 2 devices "
                "depends on how many rows share a pass"
            )
        if self.hands:
            raise ConfigError(
                f"tensor_parallel_size={size} with role or handoff_listen: pages of several "
                "devices are not handed to another engine"
            )

    def _check_door(self) -> None:
        given = [n for n in ("certfile", "keyfile", "ca_certs") if getattr(self, f"ssl_{n}")]
        if self.listen.startswith("tls:"):
            if self.ssl_certfile is None or self.ssl_keyfile is None:
                raise ConfigError(f"listen={self.listen} needs ssl_certfile and ssl_keyfile")
        elif given and not self.hands:
            raise ConfigError(f"ssl_{given[0]} needs listen=tls:HOST:PORT, not {self.listen}")

    def _check_handoffs(self) -> None:
        if self.handoff_listen is None and (self.role is Role.DECODE or self.handoff_advertise):
            raise ConfigError("handoff_listen says where pages come: role decode takes them")
        kinds = {
            _kind(name, address)
            for name in ("handoff_listen", "handoff_advertise")
            if (address := getattr(self, name)) is not None
        }
        if len(kinds) > 1:
            raise ConfigError(
                f"handoff_advertise={self.handoff_advertise} and "
                f"handoff_listen={self.handoff_listen}: both must be tcp: or both tls:"
            )
        given = [self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs]
        of_tls = self.listen.startswith("tls:")  # where they may be for gateways alone
        if ("tls" in kinds or (self.hands and not of_tls and any(given))) and not all(given):
            raise ConfigError(
                "handoffs with TLS need ssl_certfile, ssl_keyfile and ssl_ca_certs: "
                "both engines show a certificate"
            )
        if "tcp" in kinds and self.ssl_ca_certs is not None:
            raise ConfigError(
                f"handoff_listen={self.handoff_listen} beside ssl_ca_certs: pages would come in "
                "the clear; it must be tls:HOST:PORT"
            )
        if self.handoff_server_name is not None and self.ssl_ca_certs is None:
            raise ConfigError(
                f"handoff_server_name={self.handoff_server_name} needs ssl_ca_certs: "
                "pages go in the clear without"
            )

    @property
    def hands(self) -> bool:
        """It takes part in handoffs."""
        return self.takes or self.role is Role.PREFILL

    @property
    def takes(self) -> bool:
        """Pages come from other engines."""
        return self.handoff_listen is not None and self.role is not Role.PREFILL

    def _check_way_here(self) -> None:
        if self.advertise is not None:
            _kind("advertise", self.advertise)
        at = _checked("listen", self.listen, read_address)
        if self.register is None or self.advertise is not None:
            return
        if isinstance(at, FileAddress) or at.host in ANY_HOST:
            raise ConfigError(
                f"register: gateways elsewhere cannot reach {self.listen};"
                " say with advertise=tcp:HOST:PORT or tls:HOST:PORT what they can"
            )

    def _at_least(self, name: str, value: int, least: int) -> None:
        if value < least:
            raise ConfigError(f"{name}={value} must be at least {least}")

    @property
    def drafts(self) -> int:
        """Of one sequence."""
        return self.speculation.tokens if self.speculation else 0

    @property
    def draft_rows(self) -> int:
        """Drafts of one pass."""
        return self.drafts * min(self.max_num_seqs, SPECULATING)

    @property
    def room(self) -> int:
        """Sequences that may run or wait."""
        return self.max_num_seqs + self.max_waiting

    @property
    def credits(self) -> int:
        """Requests one gateway may have open: enough to fill the engine and its queue, and to
        say of some more that they have a better claim."""
        return self.room + max(1, self.room // 16)


def _kind(name: str, address: str) -> str:
    """Of an address that others reach. Raises ConfigError."""
    return _checked(name, address, read_net_address).kind


def _checked(name: str, address: str, read: Callable[[str], A]) -> A:
    """Raises ConfigError."""
    try:
        return read(address)
    except AddressInvalid as error:
        raise ConfigError(f"{name}={address[:200]} must be one of {error.expected}") from error
