"""Queries over batches: a project's own, and the work of whoever runs them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.batches.models import OPEN, Batch, BatchLine, BatchState
from gateway.db import TenantRepository
from gateway.files.models import StoredFile

_ID = re.compile(r"batch_[0-9a-f]{32}")


class BatchRepository(TenantRepository[Batch]):
    rows = Batch

    async def one(self, batch: str) -> Batch | None:
        if not _ID.fullmatch(batch):
            return None
        found: Batch | None = await self._session.scalar(self.mine().where(Batch.id == batch))
        return found

    async def page(self, *, most: int, after: str | None) -> Sequence[Batch]:
        """Newest first; ids rise with time."""
        statement = self.mine()
        if after is not None:
            statement = statement.where(Batch.id < after)
        return (await self._session.scalars(statement.order_by(Batch.id.desc()).limit(most))).all()

    async def open(self) -> int:
        statement = select(func.count()).where(
            Batch.project_id == self.project, Batch.state.in_(OPEN)
        )
        return (await self._session.execute(statement)).scalar_one()

    async def reads(self, file: str) -> bool:
        """Whether an open batch still needs this file."""
        found = await self._session.scalar(
            self.mine().where(Batch.input_file == file, Batch.state.in_(OPEN)).limit(1)
        )
        return found is not None

    async def cancel(self, batch: str, now: datetime) -> None:
        """A no-op unless it is still being worked on."""
        await self._session.execute(
            update(Batch)
            .where(
                Batch.project_id == self.project,
                Batch.id == batch,
                Batch.state.in_((BatchState.VALIDATING, BatchState.IN_PROGRESS)),
            )
            .values(state=BatchState.CANCELLING, cancelling_at=now)
        )


@dataclass(frozen=True, slots=True)
class Tenure:
    """The right to work on a batch, as long as nobody took it over."""

    batch: str
    owner: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One attempt at a line."""

    line: int
    request: str
    begun_at: datetime
    attempt: int  # from 1


@dataclass(frozen=True, slots=True)
class Progress:
    """What a group of answers adds to its batch."""

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


NOTHING = Progress()


class WorkRepository:
    """For those who run batches, who see every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def free(self, owner: str, now: datetime, most: int) -> Sequence[tuple[str, str]]:
        """(batch, project), oldest first: nobody's, its owner's own, or let go by time."""
        statement = (
            select(Batch.id, Batch.project_id)
            .where(Batch.state.in_(OPEN), _takeable(owner, now))
            .order_by(Batch.created_at, Batch.id)
            .limit(most)
        )
        return [(row[0], row[1]) for row in await self._session.execute(statement)]

    async def take(self, batch: str, owner: str, now: datetime, until: datetime) -> Tenure | None:
        """None: somebody was faster, or it ended."""
        statement = (
            update(Batch)
            .where(Batch.id == batch, Batch.state.in_(OPEN), _takeable(owner, now))
            .values(owner=owner, held_until=until, fence=Batch.fence + 1)
            .returning(Batch.fence)
        )
        fence = (await self._session.execute(statement)).scalar_one_or_none()
        return None if fence is None else Tenure(batch, owner, fence)

    async def hold(self, tenure: Tenure, progress: Progress, **values: Any) -> Batch | None:
        """Write to the batch, and be alone with it until the transaction ends. None: lost it."""
        added = {
            name: getattr(Batch, name) + more for name, more in asdict(progress).items() if more
        }
        statement = (
            update(Batch)
            .where(_held_by(tenure))
            .values(owner=tenure.owner, **added, **values)
            .returning(Batch)
            .execution_options(populate_existing=True)
        )
        found: Batch | None = (await self._session.execute(statement)).scalar_one_or_none()
        return found

    async def begun(self, batch: str) -> dict[int, Claim | None]:
        """Every line that was begun; None where it is answered."""
        answered = BatchLine.answer.is_not(None)
        statement = select(
            BatchLine.line, BatchLine.request, BatchLine.begun_at, BatchLine.attempts, answered
        ).where(BatchLine.batch_id == batch)
        return {
            line: None
            if done
            else Claim(line=line, request=request, begun_at=begun_at, attempt=attempts)
            for line, request, begun_at, attempts, done in await self._session.execute(statement)
        }

    async def begin(self, batch: str, fresh: Sequence[Claim], again: Sequence[Claim]) -> None:
        if fresh:
            rows = [
                {
                    "batch_id": batch,
                    "line": claim.line,
                    "request": claim.request,
                    "begun_at": claim.begun_at,
                    "attempts": claim.attempt,
                    "answer": None,
                    "failed": False,
                }
                for claim in fresh
            ]
            await self._session.execute(insert(BatchLine), rows)
        for claim in again:
            await self._session.execute(
                update(BatchLine)
                .where(BatchLine.batch_id == batch, BatchLine.line == claim.line)
                .values(attempts=claim.attempt)
            )

    async def is_answered(self, batch: str, line: int) -> bool:
        statement = select(BatchLine.answer.is_not(None)).where(
            BatchLine.batch_id == batch, BatchLine.line == line
        )
        return bool((await self._session.execute(statement)).scalar_one_or_none())

    async def answer(self, batch: str, answers: Iterable[tuple[int, str, bool]]) -> None:
        """(line, answer, whether it failed). A line is answered once."""
        for line, answer, failed in answers:
            result = await self._session.execute(
                update(BatchLine)
                .where(
                    BatchLine.batch_id == batch,
                    BatchLine.line == line,
                    BatchLine.answer.is_(None),
                )
                .values(answer=answer, failed=failed)
            )
            assert result.rowcount == 1, "a line was answered twice"  # type: ignore[attr-defined]

    async def answers(
        self, batch: str, *, failed: bool, after: int, most: int
    ) -> Sequence[tuple[int, str]]:
        """In the order of the input."""
        statement = (
            select(BatchLine.line, BatchLine.answer)
            .where(
                BatchLine.batch_id == batch,
                BatchLine.failed == failed,
                BatchLine.answer.is_not(None),
                BatchLine.line > after,
            )
            .order_by(BatchLine.line)
            .limit(most)
        )
        rows = await self._session.execute(statement)
        return [(line, answer) for line, answer in rows if answer is not None]

    async def forget_lines(self, batch: str) -> None:
        await self._session.execute(delete(BatchLine).where(BatchLine.batch_id == batch))

    def add_file(self, row: StoredFile) -> None:
        self._session.add(row)


def _takeable(owner: str, now: datetime) -> Any:
    return or_(Batch.owner.is_(None), Batch.owner == owner, Batch.held_until < now)


def _held_by(tenure: Tenure) -> Any:
    return (
        (Batch.id == tenure.batch) & (Batch.owner == tenure.owner) & (Batch.fence == tenure.fence)
    )
