"""Where responses are kept, for as long as their project wants, and found by nobody else."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from gateway.db import Database, DatabaseUnavailable, Tenancy
from gateway.errors import Conflict, InvalidRequest, ResourceNotFound, Unavailable
from gateway.identity.principal import Principal
from gateway.inference.responding import Item, Responding
from gateway.responses.models import StoredResponse
from gateway.responses.repository import (
    ResponseRepository,
    ResponsesRepository,
    RetentionRepository,
)

SWEEP_S = 60.0
AT_ONCE = 200

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for one request: what it goes on from, and how long it is kept."""

    before: Sequence[Item]
    kept_for: timedelta  # 0: it is not kept


class Archive:
    """Belongs to one event loop."""

    def __init__(self, database: Database, *, days: int) -> None:
        self._database, self._days = database, days

    async def terms(self, who: Principal, previous: str | None) -> Terms:
        """Raises InvalidRequest where there is no such previous response, Unavailable."""
        try:
            async with self._database.reading(within=_tenancy(who)) as session:
                days = await RetentionRepository(session, who.project).days()
                kept = timedelta(days=self._days if days is None else days)
                if previous is None:
                    return Terms((), kept)
                rows = ResponseRepository(session, who.project)
                row = await rows.one(previous, datetime.now(UTC))
        except DatabaseUnavailable as error:
            if previous is None:
                log.warning("responses are not kept: %s", error)
                return Terms((), timedelta())
            raise Unavailable("Responses cannot be read at the moment.", retry_after=1.0) from error
        if row is None:
            raise InvalidRequest(
                f"Previous response with id {previous[:80]!a} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return Terms(orjson.loads(row.conversation), kept)

    async def keep(self, who: Principal, body: dict[str, Any], what: Responding) -> None:
        """A response that cannot be kept is answered all the same, and said so in the log."""
        now = datetime.now(UTC)
        row = StoredResponse(
            id=body["id"],
            project_id=who.project,
            body=_text(body),
            items=_text(what.items),
            conversation=_text([*what.before, *what.items, *body["output"]]),
            created_at=now,
            expires_at=now + what.kept_for,
        )
        try:
            async with self._database.unit_of_work(within=_tenancy(who)) as session:
                await ResponseRepository(session, who.project).put(row)
        except (DatabaseUnavailable, Conflict) as error:
            log.warning("response %s is not kept: %s", body["id"], error)

    async def one(self, who: Principal, response: str) -> StoredResponse:
        """Raises ResourceNotFound, the same for another project's response and for none."""
        async with self._database.reading(within=_tenancy(who)) as session:
            rows = ResponseRepository(session, who.project)
            return _found(await rows.one(response, datetime.now(UTC)), response)

    async def delete(self, who: Principal, response: str) -> None:
        """Raises ResourceNotFound."""
        async with self._database.unit_of_work(within=_tenancy(who)) as session:
            rows = ResponseRepository(session, who.project)
            await rows.remove(_found(await rows.one(response, datetime.now(UTC)), response))

    async def run(self) -> None:
        """Delete what has had its time, for ever."""
        while True:
            try:
                while await self.sweep() == AT_ONCE:
                    pass
            except (DatabaseUnavailable, Conflict) as error:
                log.warning("no response was cleared away: %s", error)
            await asyncio.sleep(SWEEP_S)

    async def sweep(self, now: datetime | None = None) -> int:
        async with self._database.unit_of_work() as session:
            return await ResponsesRepository(session).forget_expired(
                now or datetime.now(UTC), AT_ONCE
            )


def _tenancy(who: Principal) -> Tenancy:
    return Tenancy(who.organisation, who.project)


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _found(row: StoredResponse | None, response: str) -> StoredResponse:
    if row is None:
        raise ResourceNotFound(
            f"Response with id {response[:80]!a} not found.", param="response_id"
        )
    return row
