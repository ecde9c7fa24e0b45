"""What ``loratorio serve`` was told: its flags read, and checked against each other."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.cli.engine_flags import DTYPES, engine_flags
from gateway.cli.flags import QUANTIZATIONS, UNNEEDED
from gateway.config import MOST_WORKERS, ConfigError, is_loopback, require_web_address


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
    generation_config: str
    tool_call_parser: str
    lora_modules: tuple[LoraModule, ...]
    engine_flags: tuple[str, ...]  # handed on as they are
    unneeded: tuple[str, ...] = field(default=())  # sentences to print


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
        generation_config=arguments.generation_config,
        tool_call_parser=arguments.tool_call_parser,
        lora_modules=parse_lora_modules(arguments.lora_modules),
        engine_flags=engine_flags(arguments),
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
    if arguments.open and not is_loopback(arguments.host):
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
