"""What was refused and is not in the database yet: counted in memory, by kind and minute.

A client that is refused asks again, often at once and for ever, so refusals are not written one by
one: those of a project that agree in key, status, code, field, model, endpoint and limit within a
minute are one row with a count. A project has ``MOST_KINDS`` of them in a minute; what else it is
refused then is told apart by status and code alone. Nothing of a prompt is kept: a field's name
only where it is a plain path.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.column_text import column_text
from gateway.errors import GatewayError
from gateway.identity.principal import Principal

MINUTE_S = 60
MOST_KINDS = 20  # of one project in a minute; beyond, by status and code alone
MOST_WAITING = 10_000  # kinds, while the database is away
MODEL_CHARS, SUBJECT_CHARS, LIMITED_CHARS = 256, 512, 320
PARAM = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
NO_CODE = "invalid_json"  # OpenAI gives none to a body that is no JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfRefusal:
    """Everything by which refusals of one minute are told apart."""

    minute: int  # unix
    organisation: str
    project: str
    key: str
    status: int
    code: str
    param: str = ""
    model: str = ""
    endpoint: str = ""
    level: str = ""
    subject: str = ""
    limited: str = ""


@dataclass(slots=True)
class Count:
    """Times are unix seconds."""

    times: int
    first: float
    last: float
    wait_ms: int
    request: str


Counted = Sequence[tuple[KindOfRefusal, Count]]


class Tally:
    """Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counts: dict[KindOfRefusal, Count] = {}
        self._minute = 0
        self._known: set[KindOfRefusal] = set()  # of this minute, written or not
        self._kinds: Counter[str] = Counter()  # project -> how many of this minute
        self.dropped = 0  # since they were last told

    def note(
        self,
        principal: Principal,
        error: GatewayError,
        *,
        endpoint: str,
        model: str = "",
        request: str = "",
    ) -> None:
        """Returns at once, and never fails."""
        now = self._clock()
        kind = self._placed(_kind(principal, error, int(now) // MINUTE_S, endpoint, model))
        wait_ms = round((error.retry_after or 0.0) * 1000)
        known = self._counts.get(kind)
        if known is not None:
            known.times += 1
            known.last, known.wait_ms, known.request = now, wait_ms, request
        elif len(self._counts) < MOST_WAITING:
            self._counts[kind] = Count(1, now, now, wait_ms, request)
        else:
            self.dropped += 1

    def take(self) -> Counted:
        """What waits, which is the caller's from here on."""
        taken, self._counts = self._counts, {}
        return list(taken.items())

    def give_back(self, counted: Counted) -> None:
        """It could not be written."""
        for kind, count in counted:
            known = self._counts.get(kind)
            if known is not None:
                known.times += count.times
                known.first = min(known.first, count.first)
            elif len(self._counts) < MOST_WAITING:
                self._counts[kind] = count
            else:
                self.dropped += count.times

    def _placed(self, kind: KindOfRefusal) -> KindOfRefusal:
        """As it is, or without most of it where its project has too many in this minute."""
        if kind.minute != self._minute:
            self._minute = kind.minute
            self._known.clear()
            self._kinds.clear()
        if kind in self._known:
            return kind
        if self._kinds[kind.project] >= MOST_KINDS:
            return KindOfRefusal(
                minute=kind.minute, organisation=kind.organisation, project=kind.project,
                key="", status=kind.status, code=kind.code,
            )  # fmt: skip
        self._kinds[kind.project] += 1
        self._known.add(kind)
        return kind


def _kind(
    principal: Principal, error: GatewayError, minute: int, endpoint: str, model: str
) -> KindOfRefusal:
    bound, param = error.bound, error.param or ""
    return KindOfRefusal(
        minute=minute,
        organisation=principal.organisation,
        project=principal.project,
        key=principal.key,
        status=int(error.status),
        code=error.detail_code or NO_CODE,
        param=param if PARAM.fullmatch(param) else "",
        model=storable(model, MODEL_CHARS),
        endpoint=endpoint,
        level=bound.level if bound else "",
        subject=storable(bound.subject, SUBJECT_CHARS) if bound else "",
        limited=storable(bound.words, LIMITED_CHARS) if bound else "",
    )


def storable(text: str, most: int) -> str:
    """As a column takes it, and not endless."""
    return column_text(text[:most])
