"""Every open request, what is yet to be said about it, and the one terminal each choice gets.

Whatever ends a choice goes through ``finish`` or ``refuse``: they free what it holds, record
what it cost and say so exactly once. Belongs to the engine loop's thread.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as View

from engine.counts import CountRecord
from engine.metrics import EngineMetrics
from engine.protocol import Counts, Finish, Output, RefusalCode, Refused, Step, ToGateway
from engine.request import Request
from engine.sequence import Sequence
from engine.traces import RequestTraces

MOST_RECORDED = 10_000  # in one answer, well within a frame

Say = Callable[[int, ToGateway], None]  # a message for one connection


class Book:
    def __init__(
        self,
        boot: str,
        record: CountRecord,
        metrics: EngineMetrics,
        *,
        release: Callable[[Sequence], None],
        say: Say,
        clock: Callable[[], float],
        traces: RequestTraces | None = None,
    ) -> None:
        self._boot, self._record, self._metrics = boot, record, metrics
        self._release, self._say, self._clock = release, say, clock
        self._traces = traces
        self._closed_at = clock()
        self._pace_s = 0.1  # between requests that end, smoothed
        self._open: dict[int, dict[str, Request]] = {}  # by connection and name
        self._outputs: defaultdict[int, list[Output]] = defaultdict(list)

    def __iter__(self) -> Iterator[Request]:
        for requests in list(self._open.values()):
            yield from list(requests.values())

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, request: Request) -> None:
        self._open.setdefault(request.connection, {})[request.submit.request] = request

    def find(self, connection: int, name: str) -> Request | None:
        return self._open.get(connection, {}).get(name)

    def of(self, connection: int) -> list[Request]:
        return list(self._open.get(connection, {}).values())

    def metered(self) -> list[Request]:
        """Those whose grant ends before they do."""
        return [request for request in self if request.metered]

    @property
    def retry_ms(self) -> int:
        """When a place in the queue is likely to be free."""
        return round(1000 * min(max(self._pace_s, 0.05), 10.0))

    def output(self, request: Request, output: Output) -> None:
        self._outputs[request.connection].append(output)

    def finish(
        self, sequence: Sequence, finish: Finish, error: str = "", output: Output | None = None
    ) -> None:
        """End a choice, with ``output`` as its terminal if its last token comes with it."""
        request = sequence.request
        self._release(sequence)
        self.output(request, output or sequence.say([], finish=finish, error=error))
        self._metrics.finished(
            finish, sequence.course, self._clock(),
            prompt=len(request.submit.tokens), generated=sequence.generated,
        )  # fmt: skip
        if self._traces is not None and request.submit.traceparent:
            self._traces.ended(request.submit, sequence.course, self._clock(), finish)
        if not request.unfinished:
            self._close(request)

    def end(
        self, request: Request, finish: Finish, error: str = "", *, only: View[int] = ()
    ) -> None:
        """End every choice that has not ended; ``only``: of these, where there are any."""
        for sequence in request.unfinished:
            if not only or sequence.index in only:
                self.finish(sequence, finish, error)

    def refuse(
        self, request: Request, code: RefusalCode, detail: str, retry_ms: int | None = None
    ) -> None:
        """Say that it never started; a request of which anything was computed ends in error."""
        if request.started:
            self.end(request, Finish.ERROR, detail)
            return
        for sequence in request.unfinished:
            self._release(sequence)
        self._say(request.connection, Refused(request.submit.request, code, detail, retry_ms))
        self._metrics.refused(code.value)
        self._drop(request)

    def note(self, request: Request) -> None:
        """Record what the request has cost so far; where another engine answers it, that one
        does."""
        if request.gives:
            return
        self._record.write(self._counts(request))

    def counts(self, connection: int, name: str) -> Counts:
        """What is known about a request, open or ended, of this boot or an earlier one."""
        request = self.find(connection, name)
        return self._counts(request) if request else self._record.read(name)

    def recorded(self, start: int, most: int) -> list[Counts]:
        return self._record.page(start, min(most, MOST_RECORDED))

    def flush(self) -> None:
        """One Step to each connection there is something to say to."""
        outputs, self._outputs = self._outputs, defaultdict(list)
        if outputs:
            self._record.flush()  # what a gateway hears is on record first
        for connection, said in outputs.items():
            self._say(connection, Step(said))

    def _close(self, request: Request) -> None:
        if request.started:
            self.note(request)
        now = self._clock()
        self._pace_s += 0.2 * (now - self._closed_at - self._pace_s)
        self._closed_at = now
        self._drop(request)

    def _drop(self, request: Request) -> None:
        requests = self._open[request.connection]
        del requests[request.submit.request]
        if not requests:
            del self._open[request.connection]

    def _counts(self, request: Request) -> Counts:
        return Counts(
            request.submit.request,
            self._boot,
            request.prompt_computed,
            request.generated,
            all(choice.finished for choice in request.choices),
            request.cached or 0,
        )
