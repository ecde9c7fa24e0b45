"""Files and batches put together: their routes, and what runs as long as a gateway does."""

from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter

from gateway.batches.asker import Asker
from gateway.batches.bill import Bills
from gateway.batches.desk import BatchDesk, FileUses
from gateway.batches.routes import batch_router
from gateway.batches.runner import Runner
from gateway.batches.work import Tools
from gateway.config import Settings
from gateway.db import Database
from gateway.files.routes import file_router
from gateway.files.shelf import FileLimits, Shelf
from gateway.files.store import FileStore
from gateway.files.sweep import FileSweep
from gateway.inference.embedding_frames import EmbeddingFrames
from gateway.inference.frames import ChatFrames, CompletionFrames
from gateway.inference.intakes import Reads
from gateway.inference.pipeline import Endpoint
from gateway.inference.services import Services
from gateway.snapshot import LiveSnapshot


def now_utc() -> datetime:
    return datetime.now(UTC)


class Batches:
    """``owner`` names this gateway among those that share a database, also after a restart."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        services: Services,
        intake: Reads,
        snapshot: LiveSnapshot,
        *,
        owner: str,
        more: Mapping[str, Endpoint] | None = None,
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        store = FileStore(settings.file_dir)
        endpoints = {
            "/v1/chat/completions": Endpoint(intake.chat, ChatFrames),
            "/v1/completions": Endpoint(intake.completion, CompletionFrames),
            "/v1/embeddings": Endpoint(intake.embedding, EmbeddingFrames),
            **(more or {}),
        }
        tools = Tools(
            database=database,
            store=store,
            asker=Asker(
                services,
                endpoints,
                snapshot.holder,
                tariff=snapshot.batch_tariff,
                at_once=settings.batch_concurrency,
            ),
            bills=Bills(database),
            principal_of=snapshot.holder,
            known=snapshot.resolve,
            lines_at_once=settings.batch_concurrency,
            line_bytes=settings.max_body_bytes,
            clock=clock,
        )
        self._runner = Runner(tools, services.metrics, owner=owner)
        self._sweep = FileSweep(database, store)
        limits = FileLimits(
            max_bytes=settings.max_file_bytes,
            per_project=settings.files_per_tenant,
            bytes_per_project=settings.file_bytes_per_tenant,
            kept_for=timedelta(days=settings.file_days),
        )
        desk = BatchDesk(
            database,
            endpoints,
            most_open=settings.batches_per_tenant,
            clock=clock,
            hint=self._runner.hint,
        )
        self.routers: list[APIRouter] = [
            file_router(services.gate, Shelf(database, store, limits, uses=FileUses())),
            batch_router(services.gate, desk),
        ]

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"batches": self._runner.run(), "file sweep": self._sweep.run()}
