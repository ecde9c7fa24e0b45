"""CloudEvents 1.0 in JSON over HTTP, as OpenMeter takes them: known again by source and id."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx2
import msgspec

from gateway.billing.models import SinkDelivery
from gateway.billing.sink import Amount, Meaning, Usage, Verdict, failure
from gateway.config import Secret

SOURCE = "loratorio"
TYPE = "loratorio.usage"
EVENTS = "/api/v1/events"
WINDOW = timedelta(days=7)  # OpenMeter's own default is 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEventSink:
    name: str
    url: str
    token: Secret | None

    needs_customer = False
    window = WINDOW

    def amounts(self, usage: Sequence[Usage], now: datetime) -> list[Amount]:
        """One event with all meters, per model of a project and quarter of an hour."""
        return [
            Amount(
                organisation_id=each.organisation_id,
                meter=TYPE,
                at=each.at,
                quantity=each.sums["cost_nano_usd"],
                data=_data(each),
            )
            for each in usage
            if any(each.sums.values())
        ]

    def payload(self, id: str, amount: Amount, customer: str) -> str:
        return msgspec.json.encode(
            {
                "specversion": "1.0",
                "id": id,
                "source": SOURCE,
                "type": TYPE,
                "subject": customer or amount.organisation_id,
                "time": amount.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "datacontenttype": "application/json",
                "data": msgspec.Raw(amount.data.encode()),
            }
        ).decode()

    async def send(self, client: httpx2.AsyncClient, delivery: SinkDelivery) -> Verdict:
        headers = {**self._headers(), "content-type": "application/cloudevents+json"}
        try:
            answer = await client.post(
                f"{self.url}{EVENTS}", content=delivery.payload.encode(), headers=headers
            )
        except httpx2.HTTPError as error:
            return Verdict(Meaning.UNKNOWN, type(error).__name__)
        return Verdict(Meaning.TAKEN) if answer.is_success else failure(answer)

    async def counted(
        self, client: httpx2.AsyncClient, doubtful: SinkDelivery, beside: Sequence[SinkDelivery]
    ) -> bool | None:
        """By its id."""
        params = {"id": doubtful.id, "from": f"{doubtful.at:%Y-%m-%dT%H:%M:%SZ}", "limit": "10"}
        answer = await client.get(f"{self.url}{EVENTS}", params=params, headers=self._headers())
        answer.raise_for_status()
        return any(
            each["event"]["id"] == doubtful.id and each["event"]["source"] == SOURCE
            for each in answer.json()
        )

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token.reveal()}"} if self.token else {}


def _data(usage: Usage) -> str:
    """Numbers as decimal text: readers that keep them as floats lose nothing on the way."""
    facts = {"project": usage.project_id, "model": usage.base_model, "adapter": usage.adapter_id}
    return msgspec.json.encode(facts | {n: str(v) for n, v in usage.sums.items()}).decode()
