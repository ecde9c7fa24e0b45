"""Rows of what the base thought that wait, in order, until the token after them is known."""

from dataclasses import dataclass

import torch

MOST = 64  # rows of one sequence: after a longer rest from speculation the last are enough


@dataclass(slots=True)
class Pending:
    """Of one sequence. Holds views of what passes left, so that to wait launches nothing."""

    first: int  # position
    pieces: list[torch.Tensor]  # [n, H] each
    count: int  # rows of all
    computed: int = 0  # of the first, rows that waited long enough

    @property
    def end(self) -> int:
        return self.first + self.count

    def rows(self, count: int) -> list[torch.Tensor]:
        """The first of them."""
        found = []
        for piece in self.pieces:
            if count <= 0:
                break
            found.append(piece[:count])
            count -= len(piece)
        return found

    def join(self, start: int, rows: torch.Tensor) -> None:
        """These begin at position ``start``: of drafts that were not kept, nothing stays."""
        if not self.first <= start <= self.end:
            self.first, self.pieces, self.count, self.computed = start, [rows], len(rows), 0
            return
        self.pieces = self.rows(start - self.first)
        self.pieces.append(rows)
        self.count = start - self.first + len(rows)
        self._drop(min(self.computed, start - self.first))
        self._drop(self.count - MOST)
        self.computed = 0

    def _drop(self, count: int) -> None:
        """Rows from the first."""
        while count > 0:
            piece = self.pieces[0]
            if len(piece) > count:
                self.pieces[0] = piece[count:]
            else:
                del self.pieces[0]
            taken = min(len(piece), count)
            self.first, self.count, count = self.first + taken, self.count - taken, count - taken
