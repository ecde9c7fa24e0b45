"""A stub engine that costs little: first tokens at once, the others in passes, as the real one.

    python -m bench.gateway.engine unix:PATH [seconds a pass]

All that one pass made for a gateway is one frame, and a request's end comes with its last token.
Answers repeat the prompt. What is not paid for is not generated; more is asked for ahead of need.
"""

import asyncio
import sys
from dataclasses import dataclass

from engine.protocol import (
    AskCounts,
    AskMetrics,
    AskRecorded,
    BaseInfo,
    Cancel,
    Counts,
    Finish,
    Grant,
    Hello,
    Metrics,
    Output,
    Recorded,
    Step,
    Submit,
    ToEngine,
    ToGateway,
    Usage,
    Welcome,
)
from engine.transport import Connection, ConnectionLost, listen

BOOT = "bench-1"
BASE = BaseInfo(
    fingerprint="bench", architecture="LlamaForCausalLM", vocab_size=49152,
    quantization="gptq", dtype="bfloat16", hidden_size=8,
)  # fmt: skip
WELCOME = Welcome("bench", BOOT, BASE, 4096, 16, 2048)
AHEAD = 32  # tokens before its end at which more of a grant is asked for
WANTED = 256
Wire = Connection[ToEngine, ToGateway]


@dataclass(slots=True)
class Running:
    submit: Submit
    granted: int
    made: int = 0
    asked: int = 0  # the total last asked for


class StubEngine:
    """Belongs to one event loop."""

    def __init__(self, pass_s: float) -> None:
        self._pass_s = pass_s
        self._running: dict[Wire, dict[str, Running]] = {}

    async def serve(self, address: str) -> None:
        server = await listen(address, ToEngine, self._connected)
        async with server:
            while True:
                await asyncio.sleep(self._pass_s)
                for wire, running in self._running.items():
                    self._step(wire, list(running.values()))

    async def _connected(self, wire: Wire) -> None:
        try:
            assert isinstance(await wire.receive(), Hello)
            wire.write(WELCOME)
            self._running[wire] = {}
            while True:
                self._take(wire, await wire.receive())
        except ConnectionLost:
            pass
        finally:
            self._running.pop(wire, None)
            await wire.close()

    def _take(self, wire: Wire, message: ToEngine) -> None:
        running = self._running[wire]
        match message:
            case Submit(request):
                granted = message.max_tokens if message.granted is None else message.granted
                running[request] = Running(message, granted)
                self._step(wire, [running[request]])
            case Grant(request, granted):
                if found := running.get(request):
                    found.granted = granted
            case Cancel(request):
                if found := running.pop(request, None):
                    wire.write(Step([_end(found, Finish.CANCELLED, [])]))
            case AskMetrics():
                wire.write(Metrics(""))
            case AskCounts(requests):
                wire.write(*(Counts(request) for request in requests))
            case AskRecorded():
                wire.write(Recorded([]))

    def _step(self, wire: Wire, running: list[Running]) -> None:
        outputs = [output for each in running if (output := _next(each)) is not None]
        if not outputs:
            return
        for output in outputs:
            if output.finish is not None:
                del self._running[wire][output.request]
        wire.write(Step(outputs))


def _next(each: Running) -> Output | None:
    submit = each.submit
    if each.made >= each.granted:
        return None
    token = [submit.tokens[each.made % len(submit.tokens)]]
    each.made += 1
    if each.made >= submit.max_tokens:
        return _end(each, Finish.LENGTH, token)
    wants = None
    if each.granted - each.made < AHEAD and each.granted < submit.max_tokens > each.asked:
        wants = each.asked = min(submit.max_tokens, each.granted + WANTED)
    return Output(submit.request, token, wants=wants)


def _end(each: Running, finish: Finish, tokens: list[int]) -> Output:
    usage = Usage(len(each.submit.tokens), 0, each.made)
    return Output(each.submit.request, tokens, finish, usage=usage)


if __name__ == "__main__":
    import uvloop

    uvloop.run(StubEngine(float(sys.argv[2])).serve(sys.argv[1]))
