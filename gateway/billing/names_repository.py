"""What the ids in a bill are called."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.billing.focus import Names, Rates, Resource
from gateway.catalog.models import Adapter
from gateway.identity.models import ApiKey, Organisation, Project
from gateway.usage.models import Price


class NamesRepository:
    """For the operator, who sees every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def names(self) -> Names:
        return Names(
            organisations=await self._pairs(select(Organisation.id, Organisation.name)),
            projects=await self._pairs(select(Project.id, Project.name)),
            principals=await self._pairs(
                select(ApiKey.id, func.coalesce(ApiKey.service_account_id, ApiKey.user_id))
            ),
            adapters={
                row.id: Resource(f"{row.name}@{row.version}", row.digest)
                for row in await self._session.execute(
                    select(Adapter.id, Adapter.name, Adapter.version, Adapter.digest)
                )
            },
            prices={
                row.id: Rates(
                    row.input_pico,
                    row.cached_input_pico,
                    row.output_pico,
                    row.storage_pico,
                    row.adapter_id is not None,
                )
                for row in await self._session.scalars(select(Price))
            },
        )

    async def _pairs(self, statement: Any) -> dict[str, Any]:
        return {row[0]: row[1] for row in await self._session.execute(statement)}
