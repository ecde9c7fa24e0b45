"""What can go wrong with an adapter. A message names the module, what was found, what is needed."""

from collections.abc import Sequence

SHOWN = 40  # problems spelled out in a message; the rest are counted


class AdapterError(Exception):
    """Root of the tree."""


class AdapterInvalid(AdapterError, ValueError):
    """The files are not an adapter this system can serve. ``problems`` lists every finding."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(self.problems[:SHOWN])
        more = len(self.problems) - SHOWN
        super().__init__(f"{shown}; and {more} more problems" if more > 0 else shown)


class WrongBase(AdapterInvalid):
    """Nothing is wrong but that it was trained on another base of the same shape."""


class AdapterTooLarge(AdapterInvalid):
    """More bytes than the store or the host cache takes."""


class AdapterMissing(AdapterError, LookupError):
    """The store has no adapter of this digest."""


class AdapterCorrupt(AdapterError):
    """Stored bytes no longer hash to their digest, or cannot be read."""


class BaseUnreadable(AdapterError, ValueError):
    """A base checkpoint whose shape facts cannot be read."""


class StoreUnusable(AdapterError, ValueError):
    """An adapter store that cannot be had as it is named; the message says what to change."""


class StoreUnavailable(AdapterError):
    """The adapter store is away for the moment; what it holds may well be right."""


class UploadGone(AdapterError, LookupError):
    """An upload in parts was given up, or is over."""
