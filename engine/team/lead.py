"""The lead's side of a team: it starts the followers, tells them what to do, and watches them.

A follower that ends, fails or does not keep up takes the engine with it: what it had of the model
is gone, and collectives would wait for it. The lead then raises MemberLost wherever it is; should
it be stuck where nothing can be raised, the process ends a moment later, with the same reason.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

import engine
from engine.config import EngineConfig
from engine.errors import MemberLost
from engine.team.orders import AnyOrder, AnyWord, Begin, Drop, Failed
from engine.team.supply import Keep, Kept, Supply
from engine.team.wire import LENGTH, Wire

PASS_S = 60.0  # that a pass may take on all members
START_S = 300.0  # that a follower may take to load its libraries
POLL_S = 0.05
REASON_S = 2.0  # for a follower's last word to be heard
GRACE_S = 10.0  # for the lead to end by itself once a follower has
END_S = 10.0  # for followers to end by themselves

log = logging.getLogger(__name__)


class Event(Protocol):
    """Something of the device's that can be waited for."""

    def synchronize(self) -> None: ...

    def query(self) -> bool: ...


class _Follower:
    """One process and our ends of its two wires."""

    def __init__(self, number: int) -> None:
        self.number = number
        orders, theirs = socket.socketpair()
        supply, other = socket.socketpair()
        self.wire: Wire[AnyWord, AnyOrder] = Wire(orders, AnyWord)
        self.ready = threading.Event()
        self.supply: Wire[Kept, Keep] = Wire(supply, Kept)
        root = str(Path(engine.__file__).parent.parent)
        with theirs, other:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "engine.team", str(theirs.fileno()), str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), other.fileno()),
                env=os.environ | {"PYTHONPATH": os.pathsep.join([root, *_python_path()])},
            )

    def last_word(self) -> str:
        """Waits until the follower says why it ends, or ends."""
        try:
            while True:
                word = self.wire.receive()
                if isinstance(word, Failed):
                    return word.reason
                self.ready.set()
        except MemberLost as lost:
            try:
                code = self.process.wait(REASON_S)
            except subprocess.TimeoutExpired:
                return str(lost)
            return f"signal {-code}" if code < 0 else f"exit code {code}"


class Lead:
    """Orders come from the engine loop's thread; the rest is thread-safe."""

    def __init__(self, config: EngineConfig) -> None:
        """Starts the followers. ``config``: with what is left to a choice already chosen."""
        self._folder = Path(tempfile.mkdtemp(prefix="loratorio-team-"))
        self.meeting = self._folder / "meeting"
        self._lost: MemberLost | None = None
        self._heard, self._closed = threading.Event(), threading.Event()
        self._encode = msgspec.msgpack.Encoder().encode
        theirs = replace(config, adapter_store=None, data_dir=None, register=None)
        self._followers = [_Follower(i) for i in range(1, config.tensor_parallel_size)]
        self.supply = Supply([follower.supply for follower in self._followers])
        for follower in self._followers:
            follower.wire.send(Begin(follower.number, str(self.meeting), theirs))
            threading.Thread(
                target=self._watch, args=(follower,), name=f"member-{follower.number}", daemon=True
            ).start()

    @property
    def processes(self) -> Sequence[int]:
        """Of the followers."""
        return [follower.process.pid for follower in self._followers]

    def await_ready(self) -> None:
        """Until all followers are about to join. Raises MemberLost."""
        end = time.monotonic() + START_S
        for follower in self._followers:
            while not follower.ready.wait(POLL_S):
                self.check()
                if time.monotonic() > end:
                    late = f"member {follower.number} of the team has not started"
                    raise MemberLost(f"{late} after {START_S:.0f} s")

    def tell(self, order: AnyOrder) -> None:
        """Raises MemberLost."""
        self.check()
        while self.supply.dropped:
            self._tell(Drop(self.supply.dropped.popleft()))
        self._tell(order)

    def check(self) -> None:
        """Raises MemberLost when a follower has ended."""
        if self._lost is not None:
            raise self._lost

    def lost(self, error: Exception) -> MemberLost:
        """What became of the team, now that a collective has failed with ``error``."""
        self._heard.wait(REASON_S)
        return self._lost or MemberLost(f"the members no longer compute together: {error!r}")

    def watched(self, event: Event) -> "Watched":
        return Watched(event, self)

    def close(self) -> None:
        """End the followers. May be called twice."""
        self._closed.set()
        for follower in self._followers:
            follower.wire.shut()
            follower.supply.shut()
        for follower in self._followers:
            if self._lost is not None:
                follower.process.kill()  # it may wait for the one that is lost
            try:
                follower.process.wait(END_S)
            except subprocess.TimeoutExpired:
                follower.process.kill()
                follower.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, order: AnyOrder) -> None:
        frame = self._encode(order)
        frame = len(frame).to_bytes(LENGTH, "little") + frame
        for follower in self._followers:
            try:
                follower.wire.send_bytes(frame)
            except MemberLost as lost:
                raise self.lost(lost) from lost

    def _watch(self, follower: _Follower) -> None:
        reason = follower.last_word()
        if self._closed.is_set():
            return
        self._lost = MemberLost(f"member {follower.number} of the team has ended: {reason}")
        self._heard.set()
        if not self._closed.wait(GRACE_S):
            log.critical("the engine ends: %s", self._lost)
            for each in self._followers:
                each.process.kill()
            os._exit(1)


class Watched:
    """An event that is waited for no longer than the team lives."""

    def __init__(self, event: Event, lead: Lead) -> None:
        self._event, self._lead = event, lead

    def synchronize(self) -> None:
        """Raises MemberLost."""
        end = time.monotonic() + PASS_S
        while not self._event.query():
            self._lead.check()
            if time.monotonic() > end:
                raise MemberLost(f"a pass was not over on all members after {PASS_S:.0f} s")
            time.sleep(0)


def _python_path() -> list[str]:
    found = os.environ.get("PYTHONPATH")
    return [found] if found else []
