"""``python -m engine``: composes an engine and serves it until told to stop.

The only place that imports torch's side at run time, and the only one that knows signals:
SIGTERM and a first SIGINT drain, a second SIGINT leaves at once.
"""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from prometheus_client import start_http_server

from engine.address import AddressInvalid, FileAddress, read_address
from engine.beats import Beats
from engine.built import Built
from engine.cli import Tool, parse
from engine.collector import begin_serving
from engine.config import EngineConfig
from engine.core import NO_GATEWAY, Core, Heard
from engine.counts import CountRecord
from engine.errors import ConfigError, EngineError, MemberLost
from engine.handoff.wire import tcp_wire
from engine.metrics import EngineMetrics
from engine.otlp import TracingUnavailable, open_provider
from engine.protocol import Welcome
from engine.reading_ahead import ReadingAhead
from engine.residency import P
from engine.server import Server
from engine.team.ending import end_process
from engine.timeline import Timeline
from engine.tls import Guard, ServerTls, TlsFiles, TlsInvalid, Tokens
from engine.traces import RequestTraces
from engine.vllm_metrics import About

log = logging.getLogger("engine")


def main(argv: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        command = parse(argv)
        if isinstance(command, Tool):
            return _tool(command.name)(list(command.arguments))
        config = command.config
        if not Path(config.model).is_dir():  # said before torch takes its seconds to load
            raise ConfigError(f"--model {config.model}: no such directory")
        _guard(config)  # and this before the model takes its minutes
        timeline = Timeline.of_process()
        with ReadingAhead(Path(config.model)):
            from engine.composition import build_runner

            built = build_runner(config, timeline)
        try:
            code = serve(config, built, ready_fd=command.ready_fd, timeline=timeline)
        finally:
            built.close()
        if config.tensor_parallel_size > 1:
            end_process(code)
        return code
    except MemberLost as error:
        sys.stderr.write(f"error: {error}\n")
        end_process(2)
    except (EngineError, AddressInvalid, TlsInvalid, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _tool(name: str) -> Callable[[list[str]], int]:
    """Imported when asked for: some need torch, none needs the others."""
    if name == "demo":
        from engine.demo.build import main as demo

        return demo
    if name == "bench":
        from engine.bench.cli import main as bench

        return bench
    if name == "quantize":
        from engine.quantiser.cli import main as quantize

        return quantize
    if name == "inspect":
        from engine.inspection.cli import main as inspect

        return inspect
    from engine.plan import main as plan

    return plan


def serve(
    config: EngineConfig,
    built: Built[P],
    *,
    ready_fd: int | None = None,
    timeline: Timeline | None = None,
) -> int:
    """Serve a built model until drained.

    Raises OSError, AddressInvalid, TlsInvalid or ConfigError.
    """
    boot, metrics = uuid.uuid4().hex, EngineMetrics(built.num_pages, _about(config, built))
    metrics.watch(built.compiled)
    record = CountRecord(Path(config.data_dir) if config.data_dir else None)
    provider = _provider(config)
    traces = RequestTraces(provider, config.name) if provider else None
    wire = tcp_wire(config, built)
    core = Core(config, built, boot=boot, record=record, metrics=metrics, traces=traces, wire=wire)
    if wire is not None:
        wire.start(lambda news: core.inbox.put(Heard(NO_GATEWAY, news), force=True))
    welcome = Welcome(
        engine=config.name,
        boot=boot,
        base=built.base,
        max_model_len=built.max_model_len,
        page_tokens=config.page_tokens,
        credits=config.credits,
        role=config.role,
        takes=wire.takes if wire else "",
        seats=config.max_num_seqs,
    )
    server = Server(
        config.listen,
        welcome,
        core.inbox,
        core.outbox,
        metrics_text=metrics.text,
        max_write_buffer=config.max_write_buffer,
        reference=built.reference,
        guard=_guard(config),
    )
    _warn_of_strangers(config)
    _handle_signals(core.drain)
    server.start()
    if config.metrics_port is not None:  # ends with the process
        start_http_server(config.metrics_port, config.metrics_host, metrics.registry)
    begin_serving()
    if timeline is not None:
        timeline.mark("the rest")
        timeline.tell()
    _say_ready(f"ready {server.address} {built.num_pages} pages", ready_fd)
    try:
        with _beats(config, core, server.address):
            return _run(core, server, record)
    finally:
        if wire is not None:
            wire.stop()
        if provider is not None:
            provider.shutdown()


def _beats(config: EngineConfig, core: Core[P], address: str) -> AbstractContextManager[object]:
    """Raises ConfigError."""
    if config.register is None:
        return nullcontext()
    told = config.advertise or address
    return Beats(config.register, told, still_s=lambda: core.still_s, leaving=lambda: core.draining)


def _provider(config: EngineConfig) -> Any:
    """Of traces, or None. Raises ConfigError."""
    if config.otlp_traces_endpoint is None:
        return None
    try:
        return open_provider(config.otlp_traces_endpoint, "loratorio-engine")
    except TracingUnavailable as error:
        raise ConfigError(str(error)) from error


def _guard(config: EngineConfig) -> Guard:
    """Raises TlsInvalid."""
    tokens = Tokens(Path(config.token_file)) if config.token_file else None
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return Guard(tokens=tokens)
    authority = Path(config.ssl_ca_certs) if config.ssl_ca_certs else None
    certificate, key = Path(config.ssl_certfile), Path(config.ssl_keyfile)
    files = TlsFiles(certificate=certificate, key=key, authority=authority)
    return Guard(tls=ServerTls(files), tokens=tokens)


def _warn_of_strangers(config: EngineConfig) -> None:
    at = read_address(config.listen)
    near = isinstance(at, FileAddress) or at.host in ("127.0.0.1", "::1", "localhost")
    if not near and config.token_file is None and config.ssl_ca_certs is None:
        asked = "--token-file, or tls: with --ssl-ca-certs"
        log.warning("whoever reaches %s may use this engine: ask for %s", config.listen, asked)


def _about(config: EngineConfig, built: Built[P]) -> About:
    cache = {
        "block_size": str(config.page_tokens),
        "cache_dtype": built.base.dtype,
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "gpu_memory_utilization": str(config.gpu_memory_utilization),
        "num_gpu_blocks": str(built.num_pages),
    }
    return About(
        model_name=config.served_model_name or Path(config.model).name,
        engine=config.name,
        max_num_seqs=config.max_num_seqs,
        cache=cache,
    )


def _run(core: Core[P], server: Server, record: CountRecord) -> int:
    try:
        core.run()
    except EngineError as error:
        log.critical("the engine ends: %s", error)
        return 1
    finally:
        server.stop()
        record.close()
    return 0


def _say_ready(line: str, ready_fd: int | None) -> None:
    log.info(line)
    if ready_fd is not None:
        with os.fdopen(ready_fd, "w") as ready:
            ready.write(line + "\n")


def _handle_signals(drain: Callable[[], None]) -> None:
    interrupts = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            raise KeyboardInterrupt
        drain()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
