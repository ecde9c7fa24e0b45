"""An engine that speaks the real protocol and makes up tokens; just another address.

    async with FakeEngine("unix:/tmp/e.sock") as engine: ...

Knobs may be changed at any time; they hold from the next request or token on. Everything a
gateway said is kept in ``heard``. The default script repeats the prompt until max_tokens.
``python -m tests.fakes.engine unix:PATH [seconds per token]`` serves one to a real gateway.
"""

import asyncio
import itertools
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import TracebackType
from typing import Self

from engine.protocol import (
    VERSION,
    AskCounts,
    AskMetrics,
    AskRecorded,
    BaseInfo,
    Cancel,
    Counts,
    Drain,
    Finish,
    Goodbye,
    Grant,
    Hello,
    Load,
    Metrics,
    Output,
    Recorded,
    RefusalCode,
    Refused,
    Retire,
    Step,
    Submit,
    ToEngine,
    ToGateway,
    TokenLogprobs,
    Usage,
    Welcome,
)
from engine.tls import NO_GUARD, Guard
from engine.transport import Connection, ConnectionLost, listen

EOS = 2
BASE = BaseInfo(
    fingerprint="fake-base", architecture="LlamaForCausalLM", vocab_size=49152,
    quantization="gptq", dtype="bfloat16", hidden_size=8,
)  # fmt: skip


GOOD = (Finish.STOP, Finish.LENGTH)
HIDDEN = 8  # numbers of a vector


def vector(submit: Submit) -> bytes:
    """What stands for a prompt pooled: of the tokens, the adapter and the pooling alone."""
    if submit.pooling is None:
        return b""
    facts = f"{submit.tokens} {submit.adapter} {submit.pooling}".encode()
    return struct.pack(f"<{HIDDEN}f", *(byte - 128 for byte in sha256(facts).digest()[:HIDDEN]))


def echo(submit: Submit) -> Sequence[int]:
    """The prompt, over and over, never stopping by itself."""
    return list(itertools.islice(itertools.cycle(submit.tokens or [1]), submit.max_tokens))


def half(index: int, token: int) -> float:
    return -0.5


@dataclass
class Knobs:
    script: Callable[[Submit], Sequence[int]] = echo  # shorter than max_tokens: ends with EOS
    choices: Sequence[Sequence[int]] = ()  # of each choice; empty: every one is the script's
    logprob: Callable[[int, int], float] = half  # of a choice's token
    token_delay_s: float = 0.0
    first_delay_s: float = 0.0
    tokens_per_step: int = 1
    refuse: Refused | RefusalCode | None = None  # every Submit from here on
    fail_after: int | None = None  # tokens, then Finish.ERROR
    die_after: int | None = None  # tokens of any one choice, then every connection is dropped
    hang_after: int | None = None  # tokens, then silence until cancelled
    deaf: bool = False  # Cancel is not acted upon
    still: bool = False  # what asks the loop for something is not answered
    grant_timeout_s: float = 1.0
    grant_step: int = 16


@dataclass(eq=False)
class _Running:
    submit: Submit
    granted: int
    generated: dict[int, int] = field(default_factory=dict)  # tokens by choice
    finished: dict[int, Finish] = field(default_factory=dict)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    prompt_told: bool = False
    dropped: set[int] = field(default_factory=set)  # choices that alone were cancelled

    def prompt_logprobs(self, index: int) -> list[TokenLogprobs] | None:
        """Once, with the first Output of choice 0."""
        wanted = self.submit.prompt_logprobs
        if wanted is None or index or self.prompt_told:
            return None
        self.prompt_told = True
        return [_logprob(token, -1.0, wanted) for token in self.submit.tokens[1:]]

    @property
    def spent(self) -> int:
        return sum(self.generated.values())

    def cancel(self) -> None:
        self.cancelled.set()
        self.more.set()


class FakeEngine:
    """Serves on one address inside the test's own event loop."""

    def __init__(
        self,
        address: str,
        *,
        boot: str = "boot-1",
        max_model_len: int = 4096,
        credits: int = 256,
        base: BaseInfo = BASE,
        knobs: Knobs | None = None,
        guard: Guard = NO_GUARD,
    ) -> None:
        self._guard = guard
        self.address, self.boot = address, boot
        self.knobs = knobs or Knobs()
        self.welcome = Welcome("fake", boot, base, max_model_len, 16, credits)
        self.heard: list[ToEngine] = []
        self.resident: list[str] = []
        self.record: dict[str, Counts] = {}
        self._draining = False
        self._running: dict[tuple[int, str], _Running] = {}
        self._connections: dict[int, Connection[ToEngine, ToGateway]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serial = itertools.count()

    async def __aenter__(self) -> Self:
        self._server = await listen(self.address, ToEngine, self._serve, self._guard.tls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.close()
        self.die()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def submitted(self) -> list[Submit]:
        return [message for message in self.heard if isinstance(message, Submit)]

    @property
    def open(self) -> int:
        """Requests without a terminal yet."""
        return len(self._running)

    def die(self) -> None:
        """Drop every connection at once, as a crash does. New ones are accepted."""
        self._running.clear()
        for connection in self._connections.values():
            connection.abort()
        for task in self._tasks:
            task.cancel()

    def push_load(self, *, free_pages: int = 100, waiting: int = 0) -> None:
        resident = list(self.resident)
        load = Load(self.open, waiting, free_pages, 100, resident, self._draining)
        for connection in self._connections.values():
            connection.write(load)

    async def _serve(self, connection: Connection[ToEngine, ToGateway]) -> None:
        number = next(self._serial)
        try:
            hello = await connection.receive()
            tokens = self._guard.tokens
            if isinstance(hello, Hello) and tokens and not tokens.accepts(hello.token):
                connection.write(Goodbye("a token is asked for"))
                return
            if not isinstance(hello, Hello) or hello.version != VERSION:
                connection.write(Goodbye(f"expected Hello of version {VERSION}", VERSION))
                return
            self._connections[number] = connection
            connection.write(self.welcome)
            self.push_load()
            while True:
                message = await connection.receive()
                self.heard.append(message)
                self._take(number, connection, message)
        except ConnectionLost:
            pass
        finally:
            self._connections.pop(number, None)
            for (owner, _), running in self._running.items():
                if owner == number:
                    running.cancel()
            await connection.close()

    def _take(
        self, number: int, connection: Connection[ToEngine, ToGateway], message: ToEngine
    ) -> None:
        match message:
            case Submit():
                self._submit(number, connection, message)
            case Cancel(request, choices):
                if (running := self._running.get((number, request))) and not self.knobs.deaf:
                    running.dropped |= set(choices)
                    if not choices:
                        running.cancel()
            case Grant(request, granted):
                if running := self._running.get((number, request)):
                    running.granted = max(running.granted, granted)
                    running.more.set()
            case AskMetrics():
                tenants = {submit.tenant for submit in self.submitted}
                lines = [f"loratorio_engine_open {self.open}"]
                lines += [f'loratorio_engine_tenant_running{{tenant="{t}"}} 0' for t in tenants]
                connection.write(Metrics("\n".join([*lines, ""])))
            case AskCounts(requests) if not self.knobs.still:
                for request in requests:
                    connection.write(self.record.get(request) or Counts(request))
            case AskRecorded(start, most):
                page = list(self.record.values())[start : start + most]
                connection.write(Recorded(page))
            case Retire(digest):
                if not any(run.submit.adapter and run.submit.adapter.digest == digest
                           for run in self._running.values()):  # fmt: skip
                    self.resident = [other for other in self.resident if other != digest]
                    self.push_load()
            case Drain():
                self._draining = True
                self.push_load()
                self._say_goodbye_when_idle()

    def _submit(
        self, number: int, connection: Connection[ToEngine, ToGateway], submit: Submit
    ) -> None:
        if refused := self._refusal(submit):
            connection.write(refused)
            return
        room = min(submit.max_tokens, max(1, self.welcome.max_model_len - len(submit.tokens)))
        granted = room * submit.n if submit.granted is None else submit.granted
        running = self._running[number, submit.request] = _Running(submit, granted)
        for index in range(submit.n):
            running.generated[index] = 0
            play = self._play(connection, running, index, room)
            task = asyncio.create_task(play)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.push_load()

    def _refusal(self, submit: Submit) -> Refused | None:
        refuse = self.knobs.refuse
        if isinstance(refuse, Refused):
            return Refused(submit.request, refuse.code, refuse.detail, refuse.retry_ms)
        if refuse is not None:
            return Refused(submit.request, refuse, f"told to refuse with {refuse}", 50)
        if self._draining:
            return Refused(submit.request, RefusalCode.DRAINING, "this engine is leaving")
        more = submit.pooling is None
        if len(submit.tokens) + more > (limit := self.welcome.max_model_len):
            detail = f"{len(submit.tokens)} prompt tokens and one more exceed {limit}"
            return Refused(submit.request, RefusalCode.PROMPT_TOO_LONG, detail)
        return None

    async def _play(
        self,
        connection: Connection[ToEngine, ToGateway],
        running: _Running,
        index: int,
        room: int,
    ) -> None:
        """Send one choice's tokens, then its one terminal."""
        submit, knobs = running.submit, self.knobs
        script = list(knobs.choices[index] if knobs.choices else knobs.script(submit))[:room]
        stops = {*submit.stop_tokens, *(() if submit.ignore_eos else (EOS,))}
        position = 0
        await _pause(running, knobs.first_delay_s)
        while position < len(script):
            if running.cancelled.is_set() or index in running.dropped:
                return self._end(connection, running, index, Finish.CANCELLED)
            if position == knobs.die_after:
                return self.die()
            if position == knobs.fail_after:
                return self._end(connection, running, index, Finish.ERROR, error="made to fail")
            if position == knobs.hang_after:
                await running.cancelled.wait()
                continue
            if script[position] in stops:
                running.generated[index] += 1
                stop = script[position]
                return self._end(connection, running, index, Finish.STOP, stop_token=stop)
            if not await self._granted(connection, running, index):
                return self._end(connection, running, index, Finish.GRANT)
            count = self._burst(running, script[position:], stops, position)
            self._send(connection, running, index, script[position : position + count])
            position += count
            await _pause(running, knobs.token_delay_s)
        if running.cancelled.is_set():
            return self._end(connection, running, index, Finish.CANCELLED)
        if len(script) < room:
            running.generated[index] += 1
            return self._end(connection, running, index, Finish.STOP, stop_token=EOS)
        return self._end(connection, running, index, Finish.LENGTH)

    def _burst(self, running: _Running, rest: Sequence[int], stops: set[int], position: int) -> int:
        """How many tokens the next Step carries, short of anything that must happen between."""
        marks = (self.knobs.die_after, self.knobs.fail_after, self.knobs.hang_after)
        limits = [mark - position for mark in marks if mark is not None and mark > position]
        until_stop = next((i for i, token in enumerate(rest) if token in stops), len(rest))
        left = running.granted - running.spent
        return min(self.knobs.tokens_per_step, until_stop, left, *limits)

    async def _granted(
        self, connection: Connection[ToEngine, ToGateway], running: _Running, index: int
    ) -> bool:
        if running.spent < running.granted:
            return True
        wants = running.granted + self.knobs.grant_step
        connection.write(Step([Output(running.submit.request, [], index=index, wants=wants)]))
        try:
            async with asyncio.timeout(self.knobs.grant_timeout_s):
                while running.spent >= running.granted and not running.cancelled.is_set():
                    running.more.clear()
                    await running.more.wait()
        except TimeoutError:
            return False
        return True

    def _send(
        self,
        connection: Connection[ToEngine, ToGateway],
        running: _Running,
        index: int,
        tokens: list[int],
    ) -> None:
        running.generated[index] += len(tokens)
        wanted = running.submit.logprobs
        logprobs = (
            None
            if wanted is None
            else [_logprob(token, self.knobs.logprob(index, token), wanted) for token in tokens]
        )
        self._note(running)
        output = Output(
            running.submit.request, tokens, index=index, logprobs=logprobs,
            prompt_logprobs=running.prompt_logprobs(index),
        )  # fmt: skip
        connection.write(Step([output]))

    def _end(
        self,
        connection: Connection[ToEngine, ToGateway],
        running: _Running,
        index: int,
        finish: Finish,
        *,
        stop_token: int | None = None,
        error: str = "",
    ) -> None:
        submit = running.submit
        usage = Usage(len(submit.tokens), 0, running.generated[index])
        running.finished[index] = finish
        if len(running.finished) == submit.n:
            for key in [key for key, value in self._running.items() if value is running]:
                del self._running[key]
        self._note(running)
        connection.write(
            Step(
                [
                    Output(
                        submit.request, [], finish, index=index, usage=usage,
                        stop_token=stop_token, error=error,
                        prompt_logprobs=running.prompt_logprobs(index),
                        embedding=vector(submit) if finish in GOOD else b"",
                    )
                ]
            )
        )  # fmt: skip
        self._say_goodbye_when_idle()

    def _note(self, running: _Running) -> None:
        submit = running.submit
        self.record[submit.request] = Counts(
            submit.request, self.boot, len(submit.tokens), running.spent,
            len(running.finished) == submit.n,
        )  # fmt: skip

    def _say_goodbye_when_idle(self) -> None:
        if self._draining and not self._running:
            for connection in self._connections.values():
                connection.write(Goodbye("drained"))


def _logprob(token: int, own: float, alternatives: int) -> TokenLogprobs:
    return TokenLogprobs(own, [(token + i, own - i) for i in range(alternatives)])


async def _pause(running: _Running, seconds: float) -> None:
    """Wait, but no longer than until the request is cancelled."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    try:
        await asyncio.wait_for(running.cancelled.wait(), seconds)
    except TimeoutError:
        return


async def _serve_for_ever(address: str, token_delay_s: float) -> None:
    async with FakeEngine(address, knobs=Knobs(token_delay_s=token_delay_s)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_for_ever(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.02))
