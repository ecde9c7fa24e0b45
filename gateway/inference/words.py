"""Plain words whose tokens are known already: most of most prompts, at a fraction of the cost.

A byte-level vocabulary cuts text into pieces before it merges any, and the patterns that are known
here all end a piece where a visible character is followed by a space, whatever stands around it.
So a text may be cut there, and each part turned into tokens by itself. Words of plain letters,
perhaps with a mark after them, are looked up; what lies between them goes to the library, in one
call. Any other tokenizer, and any text of few such words, goes to it whole.

A word that was met before is found some microseconds sooner, whoever sent it, as it is in the
library's own cache. Only short words of plain letters are kept, which nobody would call a secret.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

Encode = Callable[[Sequence[str]], list[list[int]]]

MOST_WORDS = 50_000
MOST_LEARNT = 64  # of one text
FEWEST = 16  # words of a text that are worth a look
_WORD = re.compile("[A-Za-z]{1,24}[.,:;?!]?")
_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = frozenset(
    {
        r"\d", r"\p{N}", r"\p{N}{1,3}",
        _CONTRACTED + r"\p{N}{1,3}" + _REST,  # Llama 3
        _CONTRACTED + r"\p{N}" + _REST,  # Qwen
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    }
)  # fmt: skip


class Words:
    """May be used from several threads."""

    def __init__(self, encode: Encode) -> None:
        """``encode``: the library's, of several texts."""
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}  # a word -> tokens of it and a space before it

    def tokens(self, text: str) -> list[int] | None:
        """None: not known well enough, the library should have the text whole."""
        pieces = text.split(" ")
        if len(pieces) < FEWEST:
            return None
        known = self._known
        found = list(map(known.get, pieces))
        found[0] = None  # no space before it
        missing = [place for place, tokens in enumerate(found) if tokens is None]
        if len(missing) * 4 > len(pieces):
            self._learn([pieces[place] for place in missing])
            return None
        self._fill(pieces, found, missing)
        return list(chain.from_iterable(filter(None, found)))

    def _fill(
        self, pieces: list[str], found: list[tuple[int, ...] | None], missing: list[int]
    ) -> None:
        """What lies between known words: cut only after a visible character."""
        runs: list[tuple[int, str]] = []
        end = 0  # pieces before it are done
        for start in missing:
            if start < end:
                continue
            end = start + 1
            while end < len(pieces) and (found[end] is None or not _is_visible(pieces[end - 1])):
                found[end] = None
                end += 1
            text = " ".join(pieces[start:end])
            runs.append((start, f" {text}" if start else text))
        for (start, _), tokens in zip(runs, self._encode([t for _, t in runs]), strict=True):
            found[start] = tuple(tokens)
        self._learn([pieces[place] for place in missing[1:]])

    def _learn(self, pieces: Sequence[str]) -> None:
        if len(self._known) >= MOST_WORDS:
            return
        new = {word for word in pieces if _WORD.fullmatch(word)} - self._known.keys()
        if not new:
            return
        words = list(new)[:MOST_LEARNT]
        for word, tokens in zip(words, self._encode([f" {w}" for w in words]), strict=True):
            self._known[word] = tuple(tokens)


def cuts_at_spaces(description: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is of the kind that may be cut as is done here."""
    plain = all(
        description.get(part) is None for part in ("truncation", "padding")
    ) and description.get("normalizer") in (None, {"type": "NFC"})
    return (
        plain
        and description["model"].get("type") == "BPE"
        and not description["model"].get("dropout")
        and all(_is_simple(token) for token in description["added_tokens"])
        and _is_known(description.get("pre_tokenizer"))
    )


def _is_simple(token: dict[str, Any]) -> bool:
    """Found in a part of a text as in all of it."""
    around = any(token.get(name) for name in ("lstrip", "rstrip", "single_word"))
    return not around and not any(map(str.isspace, token["content"]))


def _is_known(part: dict[str, Any] | None) -> bool:
    """Ends with the byte level; all before it cuts text as this module believes."""
    if part is None:
        return False
    steps = part["pretokenizers"] if part["type"] == "Sequence" else [part]
    *cuts, last = steps
    return (
        last["type"] == "ByteLevel"
        and not last["add_prefix_space"]
        and (last.get("use_regex", True) or any(map(_splits_words, cuts)))
        and all(step["type"] == "Digits" or _splits(step) for step in cuts)
    )


def _splits(step: dict[str, Any]) -> bool:
    if step["type"] != "Split":
        return False
    pattern = step["pattern"].get("Regex")
    return pattern in _PATTERNS and step["behavior"] == "Isolated" and not step["invert"]


def _splits_words(step: dict[str, Any]) -> bool:
    """Into words, not only digits."""
    return _splits(step) and r"\s+" in step["pattern"]["Regex"]


def _is_visible(piece: str) -> bool:
    """It ends in a character after which a space begins something new."""
    return bool(piece) and not piece[-1].isspace()
