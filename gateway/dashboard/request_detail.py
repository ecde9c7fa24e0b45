"""One request of the log: what each meter was charged, at which price, and what was adjusted; or by
what it was refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.dashboard.request_line import Line, RefusedLine
from gateway.dashboard.request_log import Entry, RequestLog
from gateway.dashboard.visit import Visit
from gateway.errors import ResourceNotFound
from gateway.identity.rights import Right
from gateway.texts.models import RequestText
from gateway.texts.repository import TextRepository
from gateway.usage.models import Price, UsageEvent

MILLION = 10**6


@dataclass(frozen=True, slots=True)
class Meter:
    name: str
    tokens: int
    million_nano: int | None  # what a million cost; None: unpriced
    cost_nano: int  # when it was charged
    now_nano: int  # with all adjustments


@dataclass(frozen=True, slots=True)
class Detail:
    line: Line
    meters: Sequence[Meter]
    adjustments: Sequence[UsageEvent]
    text: RequestText | None  # where it is kept, and for whom may read it
    is_refused = False

    @property
    def cost_nano(self) -> int | None:
        return self.line.row.cost_nano

    @property
    def now_nano(self) -> int | None:
        """None: it has no price yet."""
        costs = [self.line.row.cost_nano, *(each.cost_nano for each in self.adjustments)]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known else None


async def detail_of(
    log: RequestLog, visit: Visit, line: Callable[[Entry], Line | RefusedLine]
) -> Detail | RefusedLine | None:
    """Of the request that the address names. Raises ResourceNotFound."""
    if not (request := visit.query.get("request", "").strip()):
        return None
    rows = log.requests
    row = await rows.one(request[:64])
    if row is None:
        return await _refused(log, request[:64], line)
    adjustments = await rows.adjustments(row.id)
    price = await rows.price(row.price_id) if row.price_id else None
    told = line(row)
    assert isinstance(told, Line), "an event is no refusal"
    return Detail(told, meters_of(row, adjustments, price), adjustments, await _text(visit, row))


async def _refused(
    log: RequestLog, request: str, line: Callable[[Entry], Line | RefusedLine]
) -> RefusedLine:
    row = await log.refusals.one(request)
    if row is None:
        raise ResourceNotFound(
            f"no request {request!r} in this log: those still running are not in it, and of refused"
            " ones of a kind only the last of each minute is known by its id",
            param="request",
        )
    told = line(row)
    assert isinstance(told, RefusedLine), "a refusal is no event"
    return told


async def _text(visit: Visit, row: UsageEvent) -> RequestText | None:
    """Not for operators: what a tenant keeps is its own."""
    if visit.viewer.is_operator or not visit.may(Right.TEXTS, row.project_id):
        return None
    return await TextRepository(visit.session, visit.organisation).one(row.id, visit.now)


def meters_of(
    row: UsageEvent, adjustments: Sequence[UsageEvent], price: Price | None
) -> Sequence[Meter]:
    """Disjoint: what was cached is no uncached input."""
    named = (
        ("Uncached input", row.prompt_tokens - row.cached_tokens, "input_nano", "input_pico"),
        ("Cached input", row.cached_tokens, "cached_nano", "cached_input_pico"),
        ("Output", row.completion_tokens, "output_nano", "output_pico"),
    )
    return [
        Meter(
            name,
            tokens,
            getattr(price, pico) * MILLION // 1000 if price else None,
            getattr(row, nano),
            getattr(row, nano) + sum(getattr(each, nano) for each in adjustments),
        )
        for name, tokens, nano, pico in named
    ]
