"""Token ids to text as they come, never half a character.

Bytes of an unfinished UTF-8 sequence are held back until the sequence is complete or can no
longer become a character; then it shows as U+FFFD, exactly as decoding the whole would show it.
"""

from codecs import utf_8_decode
from collections.abc import Sequence

from gateway.inference.tokenizer import Tokenizer


class Detokenizer:
    """The text of one choice, so far."""

    __slots__ = ("_held", "_quick", "_token_bytes")

    def __init__(
        self, tokenizer: Tokenizer, *, special: bool = False, spelled: Sequence[str] = ()
    ) -> None:
        """``special``: control tokens show, by their names. ``spelled``: these do."""
        plain = tokenizer.spelling(spelled) if spelled else tokenizer.bytes_of
        self._token_bytes = self._quick = tokenizer.spelling_of if special else plain
        if not (special or spelled):  # nothing else has to be asked for what a token adds
            self._quick = tokenizer.token_bytes.__getitem__
        self._held = b""  # the beginning of a character

    def feed(self, tokens: Sequence[int]) -> str:
        """The characters that these tokens completed."""
        try:
            data = b"".join(map(self._quick, tokens))
        except IndexError:  # one is beyond the vocabulary
            data = b"".join(map(self._token_bytes, tokens))
        if not self._held and data.isascii():
            return data.decode("ascii")
        data = self._held + data
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def flush(self) -> str:
        """What is held back shows as U+FFFD: nothing more will come."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")
