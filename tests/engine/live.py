"""A real engine of a small checkpoint, its loop and its wire in threads of this process."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.composition import build_runner
from engine.config import Device, EngineConfig
from engine.core import NO_GATEWAY, Core, Heard
from engine.counts import CountRecord
from engine.handoff.news import News
from engine.handoff.wire import tcp_wire
from engine.metrics import EngineMetrics
from engine.protocol import AskReference, Verdict, Welcome
from engine.server import Server
from engine.traces import RequestTraces

Reference = Callable[[AskReference], Verdict]


class LiveEngine:
    """Started by entering, drained by leaving."""

    def __init__(
        self,
        model: Path,
        store: Path | str,
        address: str,
        *,
        reference: Callable[[Reference], Reference] = lambda found: found,
        traces: RequestTraces | None = None,
        **settings: Any,
    ) -> None:
        """``reference`` may stand between the engine's own and whoever asks."""
        self.config = EngineConfig(
            model=str(model),
            listen=address,
            adapter_store=str(store),
            device=Device.CPU,
            threads=1,
            max_num_seqs=8,
            pool_bytes=8 << 20,
            **settings,
        )
        built = build_runner(self.config)
        metrics = EngineMetrics(built.num_pages)
        self.wire = tcp_wire(self.config, built)
        if self.wire is not None:
            self.wire.start(self._told)
        self.core: Core[Any] = Core(
            self.config,
            built,
            boot="boot-1",
            record=CountRecord(None),
            metrics=metrics,
            traces=traces,
            wire=self.wire,
        )
        assert built.reference is not None
        self.server = Server(
            address,
            Welcome(
                "live", "boot-1", built.base, built.max_model_len, self.config.page_tokens,
                self.config.credits, self.config.role, self.wire.takes if self.wire else "",
            ),
            self.core.inbox,
            self.core.outbox,
            metrics_text=metrics.text,
            max_write_buffer=self.config.max_write_buffer,
            reference=reference(built.reference),
        )  # fmt: skip
        self._loop = threading.Thread(target=self._run, daemon=True)

    def _told(self, news: News) -> None:
        self.core.inbox.put(Heard(NO_GATEWAY, news), force=True)

    def _run(self) -> None:
        try:
            self.core.run()
        finally:
            self.server.stop()
            if self.wire is not None:
                self.wire.stop()

    def __enter__(self) -> Self:
        self.server.start()
        self._loop.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.core.drain()
        self._loop.join(10)
        assert not self._loop.is_alive()
