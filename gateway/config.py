"""Everything a gateway needs to know before it starts, checked once.

The supervisor writes these as a JSON file (mode 0600, for it may hold database passwords) and
``python -m gateway serve --settings FILE`` reads it. Where a secret stands there may be
``{"file": PATH}`` instead, so that an orchestrator's settings need not hold any. Nothing below
``__main__`` reads an environment variable, and no other module derives these paths again.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from engine.tls import ClientTls, Credentials, ServerTls, TlsFiles, TlsInvalid, Tokens

GENERATION_CONFIGS = ("auto", "vllm")
TOOL_CALL_PARSERS = ("auto", "hermes", "llama3_json", "mistral", "qwen3_coder")
LEAST_RETENTION_DAYS = 35
MOST_WORKERS = 64
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}


class ConfigError(ValueError):
    """The gateway cannot start with these settings. The message says what to change."""


class Secret:
    """A string that no log, traceback or ``repr`` shows. ``reveal()`` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True)
class DataDir:
    """Where everything that outlives a process is, for programs and commands alike."""

    root: Path

    @property
    def pepper(self) -> Path:
        return self.root / "pepper"

    @property
    def adapter_store(self) -> Path:
        return self.root / "adapters"

    @property
    def adapter_cache(self) -> Path:
        """Copies of adapters that are stored elsewhere."""
        return self.root / "adapter-cache"

    @property
    def base_spec(self) -> Path:
        """What the served base looks like, for validating adapters without an engine."""
        return self.root / "base.json"

    @property
    def uploads(self) -> Path:
        """Adapters on their way."""
        return self.root / "uploads"

    @property
    def files(self) -> Path:
        """What tenants upload for batches, and what those write. Gateways share it."""
        return self.root / "files"

    @property
    def webhook_secret(self) -> Path:
        return self.root / "webhook-secret"

    def usage_log(self, worker: int) -> Path:
        return self.root / (f"usage-{worker}" if worker else "usage")

    def usage_logs(self, first: int = 0) -> list[Path]:
        """Those that there are, of workers from this one on."""
        found = (self.usage_log(worker) for worker in range(first, MOST_WORKERS))
        return [folder for folder in found if folder.is_dir()]

    def database(self, given: Secret | None) -> str:
        """SQLAlchemy URL with its async driver: SQLite in here unless one is given.

        Raises ConfigError.
        """
        if given is None:
            return f"sqlite+aiosqlite:///{self.root.absolute() / 'loratorio.db'}"
        url = given.reveal()
        for plain, driver in _DRIVERS.items():
            if url.startswith(f"{plain}://"):
                return f"{driver}://{url.removeprefix(f'{plain}://')}"
        if url.startswith(tuple(f"{driver}://" for driver in _DRIVERS.values())):
            return url
        raise ConfigError("the database URL must start with sqlite:// or postgresql://")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBase:
    """A base that is served beside the first."""

    name: str  # public, and reserved in every project
    model_dir: Path  # its tokenizer and chat template
    spec_file: Path | None = None  # as `loratorio prepare` writes it; None: read from model_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data_dir: Path  # see DataDir
    model_dir: Path  # tokenizer and chat template of the base
    served_model_name: str  # the base's public name, reserved in every project
    engines: tuple[str, ...]  # addresses, or where they are told: see fleet/directory.py
    engine_ssl_ca_certs: Path | None = None  # whose certificates engines must show; None: system's
    engine_ssl_certfile: Path | None = None  # shown to engines that ask for one
    engine_ssl_keyfile: Path | None = None
    engine_ssl_server_name: str | None = None  # that certificates are for; None: the address's host
    engine_token_file: Path | None = None  # its first line is shown to engines
    other_bases: tuple[OtherBase, ...] = ()  # served beside it, by other engines
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1  # gateways of this data directory that share the port
    worker: int = 0  # which of them this is
    ssl_certfile: Path | None = None  # of the API's port, PEM, with its chain; None: plain HTTP
    ssl_keyfile: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9090  # 0 picks a free one
    database_url: Secret | None = None  # None: SQLite in data_dir
    redis_url: Secret | None = None  # None: limits are counted in this process
    pepper: Secret | None = None  # hex; None: the file in data_dir, made once
    key_environment: str = "live"  # the middle of sk-live-…
    open: bool = False  # any or no key maps to open_tenant; loopback only
    open_tenant: str = "acme"
    max_body_bytes: int = 8 << 20
    max_inflight: int = 1024  # requests admitted at once, over all engines
    request_timeout_s: float = 600.0
    handoff_least_tokens: int = 256  # of a prompt that an engine of role prefill computes
    handoff_queue_tokens: int = 32_768  # of prompts that may wait there; beyond, nobody's is sent
    engine_silence_s: float = 30.0  # after which an engine whose loop does not answer is lost
    usage_retention_days: int | None = None  # of single events; None: for ever
    alert_webhook_url: str | None = None  # of the operator; None: nobody is told of spending
    alert_webhook_secret: Secret | None = None  # whsec_…; None: the file in data_dir, made once
    operator_organisation: str | None = None  # whose administrators grant credit; None: nobody's
    otlp_traces_endpoint: str | None = None  # of an OpenTelemetry collector; None: no traces
    oidc_file: Path | None = None  # who signs people in, see identity/oidc_settings.py
    sinks_file: Path | None = None  # which billing systems there are, see billing/sinks.py
    forwarded_hops: int = 0  # proxies of ours in front, whose x-forwarded-for is believed
    allowed_origins: tuple[str, ...] = ()  # of web pages that may call the API; "*": all
    public_system_prompts: tuple[str, ...] = ()  # texts whose KV all projects share
    priority_tier: bool = False  # whether service_tier "priority" goes before other requests
    generation_config: str = GENERATION_CONFIGS[0]  # auto: as the checkpoint recommends
    tool_call_parser: str = TOOL_CALL_PARSERS[0]  # auto: as the chat template says
    epoch_poll_s: float = 0.25  # how often a change of keys or adapters is looked for
    limit_deadline_s: float = 0.25  # longest wait for the limit store
    limit_recovery_s: float = 3.0  # until a Redis that began empty is told all that runs
    settle_interval_s: float = 0.5  # how often the usage log goes to the database
    orphan_patience_s: float = 60.0  # how long engines may take to tell of a dead run's requests
    adapter_store_url: str | None = None  # s3://bucket/prefix; None: a directory in data_dir
    max_adapter_bytes: int = 8 << 30  # of one upload
    adapters_per_tenant: int = 1000  # versions; a tenant's own quota comes before
    adapter_bytes_per_tenant: int = 64 << 30
    adapter_canary: bool = True  # try every upload on an engine before it is published
    max_file_bytes: int = 200 << 20
    files_per_tenant: int = 10_000
    file_bytes_per_tenant: int = 20 << 30
    response_days: int = 30  # that a response is kept, unless its tenant has a number of its own
    file_days: int = 30  # that a file is kept, unless its upload says less
    batches_per_tenant: int = 100  # that have not ended
    batch_concurrency: int = 32  # lines of batches that one gateway asks at once
    rollup_interval_s: float = 5.0  # how often events are added up; reports do not wait for it

    def __post_init__(self) -> None:
        self._require_bases()
        if not self.engines:
            raise ConfigError("engines: give at least one engine address")
        self._require_numbers()
        self._require_workers()
        self._require_pairs()
        self._require_names()
        if (collector := self.otlp_traces_endpoint) is not None:
            require_web_address("otlp_traces_endpoint", collector)
        if (hook := self.alert_webhook_url) is not None:
            require_web_address("alert_webhook_url", hook)
        self._require_doors()

    def _require_bases(self) -> None:
        if not self.served_model_name or not self.served_model_name.isprintable():
            raise ConfigError("served_model_name must be a printable, non-empty name")
        names = [self.served_model_name]
        for base in self.other_bases:
            if not base.name or not base.name.isprintable():
                raise ConfigError("other_bases: name must be a printable, non-empty name")
            if base.name in names:
                raise ConfigError(f"other_bases: the name {base.name!r} is another base's")
            names.append(base.name)

    def _require_numbers(self) -> None:
        for name in ("port", "metrics_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ConfigError(f"{name}={getattr(self, name)} must be between 0 and 65535")
        for name in (
            "max_body_bytes", "max_inflight", "request_timeout_s", "epoch_poll_s",
            "engine_silence_s", "handoff_least_tokens", "handoff_queue_tokens",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be positive")
        if (days := self.usage_retention_days) is not None and days < LEAST_RETENTION_DAYS:
            raise ConfigError(
                f"usage_retention_days={days} must be at least {LEAST_RETENTION_DAYS}: a month is"
                " closed before its events go"
            )
        if not 0 <= self.forwarded_hops <= 16:
            raise ConfigError(f"forwarded_hops={self.forwarded_hops} must be between 0 and 16")

    def _require_workers(self) -> None:
        if not 0 <= self.worker < self.workers <= MOST_WORKERS:
            raise ConfigError(
                f"workers={self.workers}, worker={self.worker}: at most {MOST_WORKERS} workers,"
                " counted from 0"
            )
        if self.workers > 1 and self.redis_url is None:
            raise ConfigError(
                "workers: several need redis_url, or each would have limits of its own"
            )

    def _require_pairs(self) -> None:
        for name in ("ssl", "engine_ssl"):
            pair = getattr(self, f"{name}_certfile"), getattr(self, f"{name}_keyfile")
            if (pair[0] is None) != (pair[1] is None):
                raise ConfigError(f"give both {name}_certfile and {name}_keyfile, or neither")

    def _require_names(self) -> None:
        for name, known in (
            ("tool_call_parser", TOOL_CALL_PARSERS),
            ("generation_config", GENERATION_CONFIGS),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is none of {', '.join(known)}")
        name = self.key_environment
        if not (name.isascii() and name.isalnum() and len(name) <= 16):
            raise ConfigError(f"key_environment={name!r}: 1 to 16 ASCII letters and digits")
        if name == "admin":
            raise ConfigError("key_environment='admin' is reserved for admin keys")

    def _require_doors(self) -> None:
        """Who may call: from which pages, and without a key from this machine alone."""
        for origin in self.allowed_origins:
            _require_origin(origin)
        if self.open and "*" in self.allowed_origins:
            raise ConfigError("open asks for no key: allowed_origins must not be '*' as well")
        if self.open and not is_loopback(self.host):
            raise ConfigError(f"open needs a loopback host, not {self.host}: it asks for no key")

    @property
    def database(self) -> str:
        """SQLAlchemy URL, with its password: for the engine only."""
        return DataDir(self.data_dir).database(self.database_url)

    @property
    def tls(self) -> ServerTls | None:
        """Of the API's port. Raises ConfigError."""
        if self.ssl_certfile is None:
            return None
        try:
            return ServerTls(TlsFiles(certificate=self.ssl_certfile, key=self.ssl_keyfile))
        except TlsInvalid as error:
            raise ConfigError(str(error)) from error

    @property
    def engine_credentials(self) -> Credentials:
        """Raises ConfigError."""
        try:
            files = TlsFiles(
                certificate=self.engine_ssl_certfile,
                key=self.engine_ssl_keyfile,
                authority=self.engine_ssl_ca_certs,
            )
            tls = ClientTls(files, server_name=self.engine_ssl_server_name)
            file = self.engine_token_file
            return Credentials(tls=tls, tokens=None if file is None else Tokens(file))
        except TlsInvalid as error:
            raise ConfigError(str(error)) from error

    @property
    def pepper_file(self) -> Path:
        return DataDir(self.data_dir).pepper

    @property
    def adapter_store(self) -> str:
        """As ``open_store`` takes it."""
        return self.adapter_store_url or str(DataDir(self.data_dir).adapter_store)

    @property
    def adapter_cache(self) -> Path:
        return DataDir(self.data_dir).adapter_cache

    @property
    def base_spec_file(self) -> Path:
        return DataDir(self.data_dir).base_spec

    @property
    def upload_dir(self) -> Path:
        return DataDir(self.data_dir).uploads

    @property
    def file_dir(self) -> Path:
        return DataDir(self.data_dir).files

    @property
    def usage_log_dir(self) -> Path:
        return DataDir(self.data_dir).usage_log(self.worker)

    @classmethod
    def from_json(cls, text: bytes) -> "Settings":
        """Raises ConfigError naming the field."""
        try:
            said = msgspec.json.decode(text)
            settings: Settings = msgspec.convert(said, cls, strict=True, dec_hook=_decode_hook)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from error
        except msgspec.DecodeError as error:
            raise ConfigError(f"settings are not JSON: {error}") from error
        _require_known(said, cls, "")
        for base in said.get("other_bases", ()):
            _require_known(base, OtherBase, "other_bases: ")
        return settings

    def to_json(self) -> bytes:
        """With the secrets revealed: write it with mode 0600."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return msgspec.json.format(msgspec.json.encode(record, enc_hook=_encode_hook))


def _require_known(said: Iterable[str], kind: type[Any], where: str) -> None:
    """A setting that nobody reads was meant to be another. Raises ConfigError."""
    known = [each.name for each in fields(kind)]
    for name in said:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"settings: {where}there is no {name[:80]!r}{meant}")


def _require_origin(text: str) -> None:
    parts = _split(text)
    if text != "*" and (parts.scheme not in ("http", "https") or text != _origin(parts)):
        raise ConfigError(
            f"allowed_origins: {text!r} is not an origin as browsers write it, like"
            " https://app.example.com, and not '*'"
        )


def _origin(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else ""


def require_web_address(name: str, text: str) -> None:
    """Raises ConfigError."""
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isascii():
        raise ConfigError(f"{name}={text[:80]!r} is not an address that begins with https://")


def _split(text: str) -> SplitResult:
    """Of what is no address at all, nothing."""
    try:
        parts = urlsplit(text)
        return parts if parts.port != 0 else SplitResult("", "", "", "", "")
    except ValueError:  # half an IPv6 address, or an impossible port
        return SplitResult("", "", "", "", "")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    if kind is Secret and isinstance(value, dict) and value.keys() == {"file"}:
        return Secret(_line_of(Path(str(value["file"]))))
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is Secret:  # what was given instead is not quoted: it may hold one
        raise ValueError('expected a string or {"file": PATH}')
    raise ValueError("expected a path")


def _line_of(file: Path) -> str:
    try:
        found = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the secret in {file} cannot be read: {error}") from error
    if not found:
        raise ConfigError(f"the secret in {file} is empty")
    return found


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))
