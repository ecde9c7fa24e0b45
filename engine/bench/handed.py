"""Requests at two engines, each whole at one of them, or its prompt at one and its answer at the
other; and what their clients saw."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from engine.bench.traffic import Arrival
from engine.client import EngineClient
from engine.handing import GiverQueues, Handing
from engine.protocol import Finish, Sampling, Submit
from engine.stream import EngineLost, RequestRefused, Stream

GREEDY = Sampling(temperature=0.0, seed=0)


@dataclass(slots=True)
class Answered:
    arrival: Arrival
    handed: bool
    first_s: float | None = None  # after it arrived
    ended_s: float | None = None  # since the start; None: it did not get all of its tokens
    gaps: list[float] = field(default_factory=list)  # seconds between its tokens


@dataclass(slots=True)
class Run:
    answered: list[Answered]
    seconds: float  # from the first request to the last answer


class Players:
    """Belongs to one event loop. ``least``: tokens of a prompt that is handed over."""

    def __init__(self, clients: Sequence[EngineClient], *, least: int, queue_tokens: int) -> None:
        self._clients, self._least = clients, least
        self._queues = GiverQueues(queue_tokens)
        self._numbers, self._runs = itertools.count(), itertools.count()

    async def play(self, arrivals: Sequence[Arrival], *, hand: bool) -> Run:
        """``hand``: the first engine computes prompts for the second; else they take turns. What
        an earlier run computed is another tenant's: nothing of it is found."""
        tenant = f"run-{next(self._runs)}"
        began = time.perf_counter()
        answered = [Answered(arrival, handed=False) for arrival in arrivals]
        async with asyncio.TaskGroup() as group:
            for number, one in enumerate(answered):
                late = began + one.arrival.at_s - time.perf_counter()
                if late > 0:
                    await asyncio.sleep(late)
                group.create_task(self._one(one, number, began, tenant, hand=hand))
        return Run(answered, time.perf_counter() - began)

    async def _one(
        self, one: Answered, number: int, began: float, tenant: str, *, hand: bool
    ) -> None:
        arrival = one.arrival
        submit = Submit(
            f"r{next(self._numbers)}", f"{tenant}-{arrival.tenant}", list(arrival.prompt),
            arrival.answer,
            sampling=GREEDY, ignore_eos=True,
        )  # fmt: skip
        last, finish = None, None
        try:
            async with self._asked(submit, one, number, hand=hand) as stream:
                while outputs := await stream.batch():
                    now = time.perf_counter()
                    for output in outputs:
                        finish = output.finish or finish
                        for _ in output.tokens:
                            if last is None:
                                one.first_s = now - began - arrival.at_s
                            else:
                                one.gaps.append(now - last)
                            last = now
        except (EngineLost, RequestRefused):
            return
        if finish is Finish.LENGTH:
            one.ended_s = time.perf_counter() - began

    @asynccontextmanager
    async def _asked(
        self, submit: Submit, one: Answered, number: int, *, hand: bool
    ) -> AsyncIterator[Stream]:
        giver, taker, count = *self._clients, len(submit.tokens)
        one.handed = hand and count >= self._least and self._queues.free("giver", count)
        async with AsyncExitStack() as stack:
            if not one.handed:
                client = taker if hand else self._clients[number % 2]
                yield await stack.enter_async_context(client.generate(submit))
                return
            self._queues.add("giver", count)
            given = partial(self._queues.remove, "giver", count)
            handing = Handing(giver, taker, submit, given=given)
            stream = await stack.enter_async_context(taker.generate(handing.submit))
            await stack.enter_async_context(handing)
            yield stream
