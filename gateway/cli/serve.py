"""``loratorio serve``: from a command line to two supervised programs that answer."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gateway.bootstrap import Access
from gateway.cli.child import Child, Program
from gateway.cli.console import Console
from gateway.cli.preflight import CannotServe, check, free_port, hold_data_dir
from gateway.cli.prepare import DEFAULT_TENANT, DEMO_TENANT, demo_model, ensure_access
from gateway.cli.probe import is_ready, url_host
from gateway.cli.ready import Ready, banner, write_private, write_ready
from gateway.cli.serve_options import ServeOptions
from gateway.cli.supervisor import StartFailed, Supervisor
from gateway.config import ConfigError, Secret, Settings

SOCKET_PATH_LIMIT = 100  # bytes; the system allows 107
GATEWAY_STOP_SECONDS = 35.0
ENGINE_STOP_SECONDS = 35.0


def serve(options: ServeOptions, console: Console) -> int:
    """Serve until a signal; the exit code. What cannot be served is said in one line."""
    try:
        check(options)
        for sentence in options.unneeded:
            console.say(sentence)
        with hold_data_dir(options.data_dir) as lock, _runtime_dir(options.data_dir) as runtime:
            _serve(options, console, runtime=runtime, lock=lock)
    except (CannotServe, ConfigError, StartFailed) as error:
        console.fail(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _serve(options: ServeOptions, console: Console, *, runtime: Path, lock: int) -> None:
    port = free_port(options.host, options.port, "--port")
    metrics_port = free_port(options.host, options.metrics_port, "--metrics-port")
    model = options.model or demo_model(options.data_dir, console)
    settings = _settings(options, model, runtime, ports=(port, metrics_port))
    access = ensure_access(options, settings)
    programs = [_gateway(each, runtime, lock) for each in _workers(options, settings)]
    programs.append(_engine(options, settings, lock))
    children = [Child(program, console.line) for program in programs]
    tls = settings.tls is not None  # and said here if no TLS can be made of the files
    supervisor = Supervisor(
        children, probe=lambda: is_ready(settings.host, port, tls=tls), say=console.say
    )
    ready = _ready(settings, access)

    def announce() -> None:
        if options.ready_file:
            write_ready(options.ready_file, ready)
        print(banner(ready), flush=True)

    try:
        asyncio.run(supervisor.run(announce))
    finally:
        if options.ready_file:
            options.ready_file.unlink(missing_ok=True)


def _workers(options: ServeOptions, settings: Settings) -> list[Settings]:
    """Of each gateway: they differ in the port of their metrics, and in their usage logs."""
    ports = [settings.metrics_port]
    for worker in range(1, settings.workers):
        wanted = options.metrics_port and options.metrics_port + worker
        ports.append(free_port(settings.metrics_host, wanted, "--metrics-port"))
    return [replace(settings, worker=w, metrics_port=port) for w, port in enumerate(ports)]


def _settings(
    options: ServeOptions, model: Path, runtime: Path, *, ports: tuple[int, int]
) -> Settings:
    return Settings(
        data_dir=options.data_dir,
        model_dir=model,
        served_model_name=options.served_model_name or model.name,
        engines=(f"unix:{runtime / 'engine.sock'}",),
        host=options.host,
        port=ports[0],
        workers=options.workers,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        metrics_host=options.host,
        metrics_port=ports[1],
        database_url=Secret(options.database_url) if options.database_url else None,
        redis_url=Secret(options.redis_url) if options.redis_url else None,
        allowed_origins=options.allowed_origins,
        usage_retention_days=options.usage_retention_days,
        alert_webhook_url=options.alert_webhook,
        operator_organisation=options.operator_organisation,
        sinks_file=options.sinks,
        oidc_file=options.oidc,
        otlp_traces_endpoint=options.otlp_traces_endpoint,
        forwarded_hops=options.forwarded_hops,
        priority_tier=options.priority_tier,
        public_system_prompts=options.public_system_prompts,
        generation_config=options.generation_config,
        tool_call_parser=options.tool_call_parser,
        adapter_canary=options.adapter_canary,
        adapter_store_url=options.adapter_store,
        open=options.open,
        open_tenant=DEMO_TENANT if options.demo else DEFAULT_TENANT,
    )


def _ready(settings: Settings, access: Access) -> Ready:
    scheme = "http" if settings.ssl_certfile is None else "https"
    origin = f"{scheme}://{url_host(settings.host)}:{settings.port}"
    metrics = f"http://{url_host(settings.metrics_host)}:{settings.metrics_port}/metrics"
    return Ready(
        base_url=f"{origin}/v1",
        dashboard_url=f"{origin}/dashboard",
        metrics_url=metrics,
        admin_key=access.admin_key,
        base_model=settings.served_model_name,
        tenants=access.tenants,
        logins=access.logins,
    )


def _gateway(settings: Settings, runtime: Path, lock: int) -> Program:
    several = settings.workers > 1
    settings_file = runtime / (f"gateway-{settings.worker}.json" if several else "gateway.json")
    write_private(settings_file, settings.to_json())
    return Program(
        name=f"gateway {settings.worker}" if several else "gateway",
        argv=(sys.executable, "-m", "gateway", "serve", "--settings", str(settings_file)),
        stop_seconds=GATEWAY_STOP_SECONDS,
        keep_open=(lock,),
    )


def _engine(options: ServeOptions, settings: Settings, lock: int) -> Program:
    return Program(
        name="engine",
        argv=(
            *(sys.executable, "-m", "engine", "serve", "--model", str(settings.model_dir)),
            *("--listen", settings.engines[0], "--adapter-store", settings.adapter_store),
            *("--data-dir", str(settings.data_dir / "engine"), "--device", options.device),
            f"--served-model-name={settings.served_model_name}",
            *("--dtype", options.dtype, *options.engine_flags),
            *_traced(settings.otlp_traces_endpoint),
        ),
        stop_seconds=ENGINE_STOP_SECONDS,
        keep_open=(lock,),
    )


def _traced(collector: str | None) -> tuple[str, ...]:
    return () if collector is None else ("--otlp-traces-endpoint", collector)


@contextmanager
def _runtime_dir(data_dir: Path) -> Iterator[Path]:
    """Where the socket lies: in the data directory, or elsewhere if its path is too long."""
    runtime = data_dir / "run"
    if len(os.fsencode(runtime / "engine.sock")) > SOCKET_PATH_LIMIT:
        runtime = Path(tempfile.mkdtemp(prefix="loratorio-", dir="/tmp"))
    runtime.mkdir(mode=0o700, exist_ok=True)
    try:
        yield runtime
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
