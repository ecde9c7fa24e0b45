"""The request log as a file: what was admitted and what was refused, in the columns of both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from zoneinfo import ZoneInfo

from starlette.responses import Response

from gateway.dashboard.request_line import Line, RefusedLine
from gateway.dashboard.request_log import Entry
from gateway.dashboard.sheet import csv_answer

MOST_ROWS = 5_000
COLUMNS = (
    "began", "ended", "request_id", "times", "status", "code", "param", "limit_level", "limit_of",
    "limit_on", "wait_seconds", "project_id", "project", "key_id", "key", "customer", "model",
    "endpoint", "finish_reason", "input_tokens", "cached_input_tokens", "output_tokens",
    "first_token_seconds", "cost_nano_usd",
)  # fmt: skip


async def request_file(
    pieces: AsyncIterator[Sequence[Entry]],
    line: Callable[[Entry], Line | RefusedLine],
    zone: ZoneInfo,
) -> Response:
    rows: list[Sequence[object]] = [COLUMNS]
    async for piece in pieces:
        rows += [_told(line(entry), zone) for entry in piece]
    return await asyncio.to_thread(csv_answer, "requests", rows)


def _told(line: Line | RefusedLine, zone: ZoneInfo) -> list[object]:
    return _refused(line, zone) if isinstance(line, RefusedLine) else _admitted(line, zone)


def _admitted(line: Line, zone: ZoneInfo) -> list[object]:
    row = line.row
    began, ended = (at.astimezone(zone).isoformat() for at in (row.started_at, row.finished_at))
    return [
        began, ended, row.id, 1, row.outcome, "", "", "", "", "", "",
        row.project_id, line.project, row.key_id, line.key, row.user_id, row.model, row.endpoint,
        row.finish_reason or "", row.prompt_tokens, row.cached_tokens, row.completion_tokens,
        "" if line.first_s is None else f"{line.first_s:.6f}",
        "" if row.cost_nano is None else row.cost_nano,
    ]  # fmt: skip


def _refused(line: RefusedLine, zone: ZoneInfo) -> list[object]:
    row = line.row
    began, ended = (at.astimezone(zone).isoformat() for at in (row.first_at, row.last_at))
    return [
        began, ended, row.request_id, row.times, row.status, row.code, row.param,
        row.level, line.by, row.limited, "" if line.wait_s is None else f"{line.wait_s:.3f}",
        row.project_id, line.project, row.key_id, line.key, "", row.model, row.endpoint,
        "", "", "", "", "", "",
    ]  # fmt: skip
