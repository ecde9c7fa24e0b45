"""A follower's process, started by the lead: ``python -m engine.team ORDERS SUPPLY``.

The arguments are descriptors of the two sockets it inherits. It ends when the lead closes them,
and with the lead's process whatever becomes of that. Signals to end are the lead's to obey.
"""

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from engine.errors import EngineError, MemberLost
from engine.team.ending import end_process
from engine.team.orders import AnyOrder, AnyWord, Begin, Failed
from engine.team.supply import Keep, Kept
from engine.team.wire import Wire

PR_SET_PDEATHSIG = 1  # linux/prctl.h

log = logging.getLogger("engine.team")


def main(argv: Sequence[str]) -> int:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1  # the lead died before the kernel knew
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    orders, supply = (socket.socket(fileno=int(text)) for text in argv)
    wire: Wire[AnyOrder, AnyWord] = Wire(orders, AnyOrder)
    try:
        begin = wire.receive()
    except MemberLost:
        return 0
    assert isinstance(begin, Begin), "the first order says who a follower is"
    logging.basicConfig(
        level=logging.INFO, format=f"%(levelname)s %(name)s [member {begin.member}]: %(message)s"
    )
    try:
        _serve(begin, wire, Wire(supply, Keep))
    except Exception as error:
        log.error("this member ends", exc_info=error)
        with contextlib.suppress(MemberLost):
            wire.send(Failed(_reason(error)))
        return 1
    return 0


def _serve(begin: Begin, wire: Wire[AnyOrder, AnyWord], supply: Wire[Keep, Kept]) -> None:
    from engine.composition import build_follower  # torch takes its seconds to load

    build_follower(begin, wire, supply).run()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, EngineError) else repr(error)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
