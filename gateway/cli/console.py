"""What a person at the terminal sees: our own lines, and those of the programs we run."""

import sys
from typing import TextIO

COLOURS = {"loratorio": "36", "engine": "35", "gateway": "34", "error": "31"}  # SGR codes


class Console:
    """Writes to standard error, so that standard output stays for answers. Colour on a tty only."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._colour = self._stream.isatty()

    def say(self, text: str) -> None:
        self.line("loratorio", text)

    def fail(self, text: str) -> None:
        """The one line that says why nothing is served."""
        print(f"{self._paint('error', 'loratorio: error:')} {text}", file=self._stream, flush=True)

    def line(self, name: str, text: str) -> None:
        print(f"{self._paint(name, f'{name:>9} |')} {text}", file=self._stream, flush=True)

    def _paint(self, name: str, text: str) -> str:
        return f"\x1b[{COLOURS.get(name, '37')}m{text}\x1b[0m" if self._colour else text
