"""The books and those who work with them: prices, drift, deliveries, a running gateway."""

from collections.abc import AsyncIterator
from datetime import datetime

import httpx2

from gateway.billing.sink_repository import SinkRepository
from gateway.checkup.checkup_repository import CheckupRepository
from gateway.checkup.finding import Finding, bad, good, warning
from gateway.checkup.stores import month_start
from gateway.db import Database, DatabaseUnavailable
from gateway.usage.reconcile import Reconciliation

MANY_BEHIND = 1000  # batches; a gateway adds them up every few seconds
HTTP_SECONDS = 5.0


async def ledger(database: Database, now: datetime) -> AsyncIterator[Finding]:
    try:
        async with database.reading() as session:
            rows = CheckupRepository(session)
            prices = await rows.price_count()
            unpriced = await rows.unpriced_models(month_start(now))
            behind = await rows.batches_behind()
            deliveries = await SinkRepository(session).summary()
        proof = await Reconciliation(database, now=now.timestamp()).run()
    except DatabaseUnavailable as error:
        yield bad("ledger", str(error), "start the database, then ask again")
        return
    if not prices:
        yield warning(
            "prices",
            "there are none: nothing costs anything, budgets never end",
            "`loratorio price set MODEL --input … --cached-input … --output …`",
        )
    for model, requests in unpriced:
        yield warning(
            "prices",
            f"{requests} requests of {model!r} this month had no price",
            "set one from before they began, then `loratorio price reprice --from TIME`",
        )
    if prices and not unpriced:
        yield good("prices", f"{prices} are set; all requests of this month have theirs")
    if behind > MANY_BEHIND:
        yield warning(
            "roll-ups",
            f"{behind} batches behind the ledger",
            "a gateway must run for them to be added up; reports are slow until then",
        )
    if proof.differences:
        yield bad(
            "books",
            f"{len(proof.differences)} differences, first {proof.differences[0]}",
            "`loratorio reconcile` tells them all; close no month before they are understood",
        )
    else:
        yield good("books", "ledger, roll-ups and closed months agree")
    for sink, _meter, state, count, _quantity, _oldest, detail in deliveries:
        if state in ("refused", "uncertain"):
            yield bad(
                f"sink {sink}",
                f"{count} deliveries are {state} ({detail or 'no answer'})",
                "`loratorio sink list`; mend the sink's address, token or meters",
            )
        elif state == "held":
            yield warning(
                f"sink {sink}",
                f"{count} deliveries wait for a customer's name",
                f"`loratorio sink customer {sink} ORG ID`",
            )


async def gateway(url: str) -> AsyncIterator[Finding]:
    """One that runs, by its /readyz."""
    try:
        async with httpx2.AsyncClient(timeout=HTTP_SECONDS, trust_env=False) as client:
            answer = await client.get(f"{url.rstrip('/')}/readyz")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        yield bad(
            "gateway",
            f"{url} does not answer: {type(error).__name__}",
            "start `loratorio serve`, or correct --gateway",
        )
        return
    if answer.is_success:
        yield good("gateway", f"{url} is ready")
    else:
        yield bad(
            "gateway",
            f"{url} is not ready: {answer.text[:300]}",
            "its log says why: engines that cannot be reached, a store that is away",
        )
