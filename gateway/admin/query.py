"""What is asked of usage and costs: a query string, checked.

The official client writes lists as ``group_by[]=model``; ``group_by=model`` and names joined by
commas are taken as well. A parameter that is not known is refused: a filter that was misspelt and
passed over would show what nobody asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from starlette.datastructures import QueryParams

from gateway.admin.span import Size, Span, span_of
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.usage.report import Group, Only

MOST_VALUES = 100  # of one list
PLAIN = ("start_time", "end_time", "bucket_width", "limit", "page", "batch")

# Their word for a group -> our column. None: it follows from another one.
USAGE_GROUPS: dict[str, Group | None] = {
    "project_id": "project_id",
    "user_id": "user_id",
    "api_key_id": "key_id",
    "model": "model",
    "batch": None,
    "service_tier": "tier",
    "adapter_id": "adapter_id",
}
COST_GROUPS: dict[str, Group | None] = {
    "project_id": "project_id",
    "user_id": "user_id",
    "api_key_id": "key_id",
    "line_item": None,  # of each model, several
    "adapter_id": "adapter_id",
}
FILTERS = {
    "project_ids": "project_id",
    "user_ids": "user_id",
    "api_key_ids": "key_id",
    "models": "model",
    "adapter_ids": "adapter_id",
}
USAGE_SIZES = {"1m": Size(60, 1440), "1h": Size(24, 168), "1d": Size(7, 31)}
COST_SIZES = {"1m": Size(60, 1440), "1h": Size(24, 180), "1d": Size(7, 180)}


@dataclass(frozen=True, slots=True)
class Query:
    span: Span
    groups: tuple[str, ...]  # in their words
    only: Only
    batch: bool | None = None
    line_items: tuple[str, ...] = ()  # empty: all

    @property
    def by_item(self) -> bool:
        return bool(self.line_items) or "line_item" in self.groups

    def columns(self, offered: Mapping[str, Group | None]) -> tuple[Group, ...]:
        return tuple(column for name in self.groups if (column := offered[name]) is not None)


def usage_query(params: QueryParams, now: datetime) -> Query:
    """Raises InvalidRequest."""
    values, lists = _sorted_out(params, ("group_by", *FILTERS), PLAIN)
    batch = values.get("batch")
    if batch not in (None, "true", "false"):
        raise InvalidRequest("batch must be true or false", param="batch")
    return Query(
        span_of(values, USAGE_SIZES, now),
        _groups(lists, USAGE_GROUPS),
        _only(lists),
        None if batch is None else batch == "true",
    )


def cost_query(params: QueryParams, now: datetime) -> Query:
    """Raises InvalidRequest."""
    offered = ("group_by", "line_items", *FILTERS)
    values, lists = _sorted_out(params, offered, PLAIN[:-1])
    return Query(
        span_of(values, COST_SIZES, now),
        _groups(lists, COST_GROUPS),
        _only(lists),
        line_items=tuple(lists.get("line_items", ())),
    )


def _sorted_out(
    params: QueryParams, many: Sequence[str], one: Sequence[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    values, lists = dict[str, str](), dict[str, list[str]]()
    for written, text in params.multi_items():
        name = written.removesuffix("[]")
        if name in many:
            # A model's name and a line item may hold commas; ids and groups do not.
            whole = written.endswith("[]") or name in ("models", "line_items", "user_ids")
            lists.setdefault(name, []).extend([text] if whole else text.split(","))
        elif written in one and written in values:
            raise InvalidRequest(f"{written} is given twice", param=written)
        elif written in one:
            values[written] = text
        else:
            raise UnsupportedParameter(f"Unknown parameter {written[:64]!r}.", param=written[:64])
    for name, found in lists.items():
        if len(found) > MOST_VALUES:
            raise InvalidRequest(f"{name}: at most {MOST_VALUES} values", param=name)
    return values, lists


def _groups(lists: dict[str, list[str]], offered: Mapping[str, Group | None]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(lists.get("group_by", ())))
    for name in names:
        if name not in offered:
            raise InvalidRequest(
                f"group_by {name[:32]!r}: one of {', '.join(offered)}", param="group_by"
            )
    return names


def _only(lists: dict[str, list[str]]) -> Only:
    return Only(
        **cast(
            "dict[str, tuple[str, ...]]",
            {column: tuple(lists[name]) for name, column in FILTERS.items() if name in lists},
        )
    )
