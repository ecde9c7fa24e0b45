"""Frames between the lead and a follower, over a socket pair: MessagePack behind its length.

Blocking, with a limit to every write, so that a follower that takes nothing is noticed.
"""

import contextlib
import socket
from typing import Any, Generic, TypeVar

import msgspec

from engine.errors import MemberLost

LENGTH = 8  # bytes before each frame
WRITE_S = 60.0  # for the other side to take what is written

In = TypeVar("In")
Out = TypeVar("Out")


class Wire(Generic[In, Out]):
    """One end. Reading and writing may be two threads', each of them one's."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        self._end = end
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def send(self, message: Out) -> None:
        """Raises MemberLost."""
        frame = self._encode(message)
        self.send_bytes(len(frame).to_bytes(LENGTH, "little") + frame)

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Raises MemberLost."""
        self._end.settimeout(WRITE_S)
        try:
            self._end.sendall(data)
        except OSError as error:
            raise MemberLost(f"cannot be told anything: {error}") from error

    def receive(self) -> In:
        """Waits as long as it takes. Raises MemberLost when the other side has ended."""
        size = int.from_bytes(self.receive_bytes(LENGTH), "little")
        try:
            found: In = self._decode(self.receive_bytes(size))
        except msgspec.DecodeError as error:
            raise MemberLost(f"said what nobody understands: {error}") from error
        return found

    def receive_bytes(self, size: int) -> bytearray:
        """Raises MemberLost."""
        found = bytearray(size)
        view = memoryview(found)
        while view:
            try:
                count = self._end.recv_into(view)
            except TimeoutError:
                continue
            except OSError as error:
                raise MemberLost(f"cannot be heard: {error}") from error
            if not count:
                raise MemberLost("closed its end")
            view = view[count:]
        return found

    def shut(self) -> None:
        """The other side hears that this one has ended."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
