"""How a process that was of a team ends."""

import logging
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """At once. Collectives' libraries would wait for members that have gone, and for graphs."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
