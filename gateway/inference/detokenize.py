"""Token ids to text as they come, never half a character.

Bytes of an unfinished UTF-8 sequence are held back until the sequence is complete or can no
longer become a character; then it shows as U+FFFD, exactly as decoding the whole would show it.
"""

import codecs
from collections.abc import Iterable

from gateway.inference.tokenizer import Tokenizer

_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one choice, so far."""

    __slots__ = ("_decoder", "_token_bytes")

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        """``special``: control tokens show, by their names."""
        self._token_bytes = tokenizer.spelling_of if special else tokenizer.bytes_of
        self._decoder = _decoder("replace")

    def feed(self, tokens: Iterable[int]) -> str:
        """The characters that these tokens completed."""
        return self._decoder.decode(b"".join(map(self._token_bytes, tokens)))

    def flush(self) -> str:
        """What is held back shows as U+FFFD: nothing more will come."""
        return self._decoder.decode(b"", final=True)
