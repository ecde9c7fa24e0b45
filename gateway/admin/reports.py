"""``/v1/organization/usage`` and ``/costs``: what was used, and what it costs, as the ledger says.

Where OpenAI has no field there are ours: ``adapter_id`` as a group, ``nano_usd`` beside an amount,
and ``unpriced_requests``, so that what has no price is never taken for free.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin.desk import AdminDesk
from gateway.admin.paths import ROOT
from gateway.admin.query import COST_GROUPS, USAGE_GROUPS, Query, cost_query, usage_query
from gateway.admin.shapes import Json
from gateway.admin.span import Span
from gateway.identity.rights import Right
from gateway.usage.pricing import BATCH_TIER
from gateway.usage.report import Bucket, Group, Line, Usage, UsageReport

NANO_PER_DOLLAR = 10**9
GIB = 2**30
EMBEDDINGS = "embeddings"
TOLD_APART: tuple[Group, ...] = ("endpoint", "tier")  # by which lines are sorted out, always


def add_reports(router: APIRouter, desk: AdminDesk) -> None:
    for kind in ("completions", "embeddings"):
        _add_usage(router, desk, kind)

    @router.get(ROOT + "/costs", **desk.needs(Right.READ))
    async def costs(request: Request) -> Json:
        async with desk.reading(request) as visit:
            query = cost_query(request.query_params, visit.now)
            report = UsageReport(visit.session, visit.who.organisation)
            columns = query.columns(COST_GROUPS)
            if query.by_item:
                columns = (*columns, "model")
            buckets = await report.buckets(
                query.span.window, query.span.width, group_by=columns, only=query.only
            )
            return _page(query.span, [_bucket(each, _costs(each.lines, query)) for each in buckets])


def _add_usage(router: APIRouter, desk: AdminDesk, kind: str) -> None:
    @router.get(f"{ROOT}/usage/{kind}", **desk.needs(Right.READ))
    async def usage(request: Request) -> Json:
        async with desk.reading(request) as visit:
            query = usage_query(request.query_params, visit.now)
            report = UsageReport(visit.session, visit.who.organisation)
            columns = tuple(dict.fromkeys((*query.columns(USAGE_GROUPS), *TOLD_APART)))
            buckets = await report.buckets(
                query.span.window, query.span.width, group_by=columns, only=query.only
            )
            shown = [_bucket(each, _used(each.lines, columns, query, kind)) for each in buckets]
            return _page(query.span, shown)


def _page(span: Span, buckets: Sequence[Json]) -> Json:
    return {
        "object": "page",
        "data": list(buckets),
        "has_more": span.next_page is not None,
        "next_page": span.next_page,
    }


def _bucket(bucket: Bucket, results: list[Json]) -> Json:
    return {
        "object": "bucket",
        "start_time": int(bucket.start.timestamp()),
        "end_time": int(bucket.end.timestamp()),
        "results": results,
    }


def _used(lines: Sequence[Line], columns: Sequence[Group], query: Query, kind: str) -> list[Json]:
    shown: dict[tuple[Any, ...], tuple[Json, Usage]] = {}
    for line in lines:
        named = _named(line, query, USAGE_GROUPS)
        facts = dict(zip(columns, line.group, strict=True))
        is_batch = facts["tier"] == BATCH_TIER
        if (facts["endpoint"] == EMBEDDINGS) != (kind == EMBEDDINGS):
            continue
        if query.batch not in (None, is_batch):
            continue
        named["batch"] = is_batch if "batch" in query.groups else None
        if line.usage.requests:  # adjustments and storage are costs alone
            known = shown.get(tuple(named.values()), (named, Usage()))[1]
            shown[tuple(named.values())] = named, known + line.usage
    return [
        {"object": f"organization.usage.{kind}.result", **_tokens(usage), **named}
        for named, usage in shown.values()
    ]


def _tokens(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_cached_tokens": usage.cached_tokens,
        "input_uncached_tokens": usage.uncached_tokens,
        "input_text_tokens": usage.uncached_tokens,
        "input_cached_text_tokens": usage.cached_tokens,
        "output_text_tokens": usage.completion_tokens,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": usage.requests,
    }


def _named(line: Line, query: Query, offered: Mapping[str, object]) -> Json:
    """Every group there is: null where it was not asked for, or the event has none of it."""
    columns = [name for name in query.groups if offered[name] is not None]
    values = dict(zip(columns, line.group, strict=False))
    return {name: values.get(name) or None for name in offered}


def _costs(lines: Sequence[Line], query: Query) -> list[Json]:
    """Lines of costs, by line item where they are asked for so."""
    if not query.by_item:
        return [
            _costed(_named(line, query, COST_GROUPS), line.usage.cost.total, line.usage.unpriced)
            for line in lines
            if line.usage.cost.total or line.usage.requests
        ]
    shown: list[Json] = []
    summed: dict[tuple[str, ...], Json] = {}
    for line in lines:
        named = _named(line, query, COST_GROUPS)
        items = [item for item in _items(line) if item.name in (query.line_items or (item.name,))]
        if "line_item" in query.groups:
            shown += [_itemised(named, item, line.usage.unpriced) for item in items]
        elif items:
            known = summed.setdefault(line.group[:-1], _costed(named, 0, 0))
            nano = known["amount"]["nano_usd"] + sum(item.nano for item in items)
            unpriced = known["unpriced_requests"] + line.usage.unpriced
            summed[line.group[:-1]] = _costed(named, nano, unpriced)
    return [*shown, *summed.values()]


@dataclass(frozen=True, slots=True)
class Item:
    """One meter of one model."""

    name: str
    nano: int
    quantity: int | float
    unit: str


def _items(line: Line) -> Iterator[Item]:
    usage, cost = line.usage, line.usage.cost
    model = line.group[-1]
    for meter, nano, tokens in (
        ("input_tokens", cost.input, usage.uncached_tokens),
        ("cached_input_tokens", cost.cached_input, usage.cached_tokens),
        ("output_tokens", cost.output, usage.completion_tokens),
    ):
        if nano or tokens:
            yield Item(f"{model}, {meter}", nano, tokens, "tokens")
    if cost.storage or usage.storage_byte_hours:
        hours = usage.storage_byte_hours / GIB
        yield Item(f"{model}, adapter_storage", cost.storage, hours, "gibibyte_hours")


def _costed(named: Json, nano: int, unpriced: int) -> Json:
    return {
        "object": "organization.costs.result",
        "amount": {"value": nano / NANO_PER_DOLLAR, "currency": "usd", "nano_usd": nano},
        "quantity": None,
        "quantity_unit": None,
        "unpriced_requests": unpriced,
        **named,
    }


def _itemised(named: Json, item: Item, unpriced: int) -> Json:
    return _costed(named, item.nano, unpriced) | {
        "line_item": item.name,
        "quantity": item.quantity,
        "quantity_unit": item.unit,
    }
