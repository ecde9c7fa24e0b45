"""Stripe's meter events, over plain HTTP.

A value is a whole number, negative where a correction takes off. Stripe knows an identifier again
for 24 hours at least and takes times of the last 35 days. No Idempotency-Key goes along: Stripe
would repeat a failure under it for a day.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

import httpx2

from gateway.billing.models import SinkDelivery
from gateway.billing.sink import Amount, Meaning, Usage, Verdict, failure
from gateway.config import Secret

EVENTS, METERS = "/v1/billing/meter_events", "/v1/billing/meters"
WINDOW = timedelta(hours=20)
OLDEST = timedelta(days=34)
HOUR = timedelta(hours=1)
PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeSink:
    name: str
    url: str
    token: Secret
    meters: Mapping[str, str]  # ours -> the event name of theirs

    needs_customer = True
    window = WINDOW

    def amounts(self, usage: Sequence[Usage], now: datetime) -> list[Amount]:
        """Per organisation, hour and meter."""
        sums: dict[tuple[str, datetime, str], int] = {}
        for each in usage:
            hour = max(each.at, now - OLDEST).replace(minute=0, second=0, microsecond=0)
            for ours, theirs in self.meters.items():
                key = (each.organisation_id, hour, theirs)
                sums[key] = sums.get(key, 0) + each.sums[ours]
        return [
            Amount(organisation_id=organisation, meter=meter, at=at, quantity=quantity)
            for (organisation, at, meter), quantity in sorted(sums.items())
            if quantity
        ]

    def payload(self, id: str, amount: Amount, customer: str) -> str:
        return urlencode(
            {
                "event_name": amount.meter,
                "identifier": id,
                "timestamp": int(amount.at.timestamp()),
                "payload[stripe_customer_id]": customer,
                "payload[value]": amount.quantity,
            }
        )

    async def send(self, client: httpx2.AsyncClient, delivery: SinkDelivery) -> Verdict:
        headers = {**self._headers(), "content-type": "application/x-www-form-urlencoded"}
        try:
            answer = await client.post(
                f"{self.url}{EVENTS}", content=delivery.payload.encode(), headers=headers
            )
        except httpx2.HTTPError as error:
            return Verdict(Meaning.UNKNOWN, type(error).__name__)
        if answer.is_success:
            return Verdict(Meaning.TAKEN)
        code, message = _error(answer)
        if answer.status_code == 400 and _is_known(message, delivery.id):
            return Verdict(Meaning.TAKEN, "it was there already")
        verdict = failure(answer)
        return Verdict(verdict.meaning, f"{verdict.detail} {code}".strip(), verdict.wait)

    async def counted(
        self, client: httpx2.AsyncClient, doubtful: SinkDelivery, beside: Sequence[SinkDelivery]
    ) -> bool | None:
        """By the hour's sum: what was taken is in it, and each doubtful one or not."""
        meter = await self._meter(client, doubtful.meter)
        if meter is None:
            return None
        start = int(doubtful.at.timestamp())
        answer = await client.get(
            f"{self.url}{METERS}/{meter}/event_summaries",
            params={
                "customer": doubtful.customer,
                "start_time": start,
                "end_time": start + int(HOUR.total_seconds()),
                "value_grouping_window": "hour",
            },
            headers=self._headers(),
        )
        answer.raise_for_status()
        there = sum(round(each["aggregated_value"]) for each in answer.json()["data"])
        taken = sum(each.quantity for each in beside if each.taken_at is not None)
        others = [each.quantity for each in beside if each.taken_at is None]
        with_it, without = _sums(others, taken + doubtful.quantity), _sums(others, taken)
        if (there in with_it) == (there in without):
            return None
        return there in with_it

    async def _meter(self, client: httpx2.AsyncClient, event_name: str) -> str | None:
        """Its id."""
        params: dict[str, str | int] = {"limit": PAGE, "status": "active"}
        while True:
            answer = await client.get(f"{self.url}{METERS}", params=params, headers=self._headers())
            answer.raise_for_status()
            page = answer.json()
            for each in page["data"]:
                if each["event_name"] == event_name:
                    found: str = each["id"]
                    return found
            if not page.get("has_more"):
                return None
            params["starting_after"] = page["data"][-1]["id"]

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token.reveal()}"}


MOST_DOUBTS = 12  # that are told apart by their sums


def _sums(parts: Sequence[int], base: int) -> set[int]:
    """What any of the parts, added to the base, can come to; empty where there are too many."""
    if len(parts) > MOST_DOUBTS:
        return set()
    found = {base}
    for part in parts:
        found |= {each + part for each in found}
    return found


def _error(answer: httpx2.Response) -> tuple[str, str]:
    try:
        error = answer.json()["error"]
        return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def _is_known(message: str, id: str) -> bool:
    return id in message and "already exists" in message
