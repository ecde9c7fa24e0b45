"""A member that decides nothing: it does what the lead orders, in order, to its own part."""

import contextlib
import logging
import threading
from collections.abc import Callable

import torch

from adapters.pack import PackedAdapter
from engine.adapter_layout import LaidOut
from engine.adapter_memory import AdapterMemory
from engine.errors import AdapterUnusable, MemberLost
from engine.host_pages import HostPages
from engine.page_memory import PageMemory
from engine.runner import ModelRunner
from engine.team.orders import (
    AnyOrder,
    AnyWord,
    Clear,
    Compute,
    Copies,
    Decode,
    Drop,
    Place,
    Swap,
)
from engine.team.supply import Keep, Kept, receive
from engine.team.wire import Wire

log = logging.getLogger(__name__)


class Pantry:
    """Adapters kept for the lead, in a thread of its own while it receives them."""

    def __init__(self, wire: Wire[Keep, Kept], lay_out: Callable[[PackedAdapter], LaidOut]) -> None:
        self._wire, self._lay_out = wire, lay_out
        self.kept: dict[int, LaidOut] = {}

    def start(self, device: torch.device) -> None:
        threading.Thread(target=self._receive, args=(device,), name="supply", daemon=True).start()

    def _receive(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            while True:
                key, packed = receive(self._wire)
                self._wire.send(self._keep(key, packed))
        except MemberLost:
            return  # the main thread hears the same

    def _keep(self, key: int, packed: PackedAdapter) -> Kept:
        try:
            self.kept[key] = self._lay_out(packed)
        except AdapterUnusable as error:
            return Kept(str(error))
        return Kept()


class Follower:
    """Belongs to the process's main thread."""

    def __init__(
        self,
        wire: Wire[AnyOrder, AnyWord],
        runner: ModelRunner,
        memory: PageMemory,
        adapters: AdapterMemory,
        pantry: Pantry,
        swap: HostPages | None,
    ) -> None:
        self._wire, self._runner, self._memory = wire, runner, memory
        self._adapters, self._pantry, self._swap = adapters, pantry, swap

    def run(self) -> None:
        """Until the lead has closed its end."""
        while True:
            try:
                order = self._wire.receive()
            except MemberLost:
                return
            self.follow(order)

    def follow(self, order: AnyOrder) -> None:
        match order:
            case Decode():
                self._runner.follow_decode(order)
            case Compute():
                self._runner.follow(order)
            case Copies(pairs):
                self._memory.await_copies()
                self._memory.copy(pairs)
            case Place(row, key, pages, after):
                with contextlib.suppress(AdapterUnusable):  # the lead has found the same
                    self._adapters.place(row, self._pantry.kept[key], pages, after=after)
            case Clear(row):
                self._adapters.clear(row)
            case Drop(key):
                self._pantry.kept.pop(key, None)
            case Swap(out, pages, slots, after):
                assert self._swap is not None, "the lead swaps what this member cannot"
                if out:
                    self._swap.out(pages, slots, after=after)
                else:
                    self._swap.back(slots, pages, after=after)
