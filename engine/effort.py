"""What following a grammar takes, sequence by sequence, and how much of it is too much.

A mask takes well under a millisecond of most grammars. One that is ambiguous enough takes a
hundred times that, and more with every token, and a whole pass waits for it. So work is measured
in seconds of its thread's own processor time, which neighbours and a busy machine do not change,
and a sequence that goes beyond its allowance is followed no further. Torch-free.
"""

from dataclasses import dataclass
from time import thread_time

GRACE_S = 0.25  # in all, beyond
TOKEN_S = 0.005  # for each token
CLOSE_LOOK_S = 0.002  # by one mask or token: from then on its masks are made one by one
HEAVY_S = 0.02  # by one mask: a pass does not wait long for the next


@dataclass(slots=True)
class Effort:
    """Belongs to whoever works on its sequence just now."""

    spent: float = 0.0  # seconds
    tokens: int = 0  # that were taken
    mask: float = 0.0  # seconds of the last one
    watched: bool = False  # its masks are made apart from others', and measured
    given_up: bool = False  # a pass went on without its mask

    @property
    def excess(self) -> str:
        """Why it is too much; empty as long as it is not."""
        if self.given_up:
            return f"it is too ambiguous to follow: what may come at token {self.tokens} takes long"
        if self.spent <= GRACE_S + TOKEN_S * self.tokens:
            return ""
        return (
            f"it is too ambiguous to follow: {self.tokens} tokens took {self.spent:.2f} s, and "
            f"{GRACE_S:g} s and {TOKEN_S:g} s a token are the most"
        )

    @property
    def heavy(self) -> bool:
        return self.mask >= HEAVY_S

    def took(self, since: float) -> None:
        """Work began when this thread's time was ``since``."""
        seconds = thread_time() - since
        self.spent += seconds
        self.watched = self.watched or seconds > CLOSE_LOOK_S

    def masked(self, since: float, places: int) -> None:
        """So many masks were made, apart from others'."""
        seconds = thread_time() - since
        self.spent += seconds
        self.mask = seconds / places
        self.watched = self.mask > CLOSE_LOOK_S
